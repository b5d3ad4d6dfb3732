import pytest
from lab.schemes import parse, parse_list


def test_a_plain_name_uses_all_nics():
    scheme = parse("fifo", 3)
    assert (scheme.kind, scheme.nics, scheme.free, scheme.is_deft) == ("fifo", 3, False, True)


def test_suffixes_may_stand_in_any_order():
    for text in ("fifo:bucket_bytes=5MB:credit_bytes=8MB@1@free", "fifo@1:bucket_bytes=5MB@free:credit_bytes=8MB"):
        scheme = parse(text, 2)
        assert scheme.options == (("bucket_bytes", "5MB"), ("credit_bytes", "8MB"))
        assert scheme.nics == 1
        assert scheme.free


def test_ddp_stands_for_its_bucket_sizes_unless_one_is_given():
    assert [variant.bucket_mib for variant in parse("ddp@1", 2).variants()] == [1, 5, 25]
    assert [variant.bucket_mib for variant in parse("ddp:2.5", 2).variants()] == [2.5]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("fifo@3", "@3"),
        ("fifo@0", "@0"),
        ("fifo@", "@"),
        ("ddp:big", "big"),
        ("ddp:0", "0"),
        ("fifo:5MB", ":5MB"),
        ("compute:x=1", ":x=1"),
        ("@1", "no name"),
        ("", "names no scheme"),
        ("fifo,fifo", "twice"),
    ],
)
def test_a_scheme_that_cannot_be_is_named(text, named):
    with pytest.raises(ValueError, match="scheme") as error:
        parse_list(text, 2)
    assert named in str(error.value)
