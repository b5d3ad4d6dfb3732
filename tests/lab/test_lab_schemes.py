import pytest
from lab.schemes import check_framework, check_policies, check_workers, parse, parse_list


def test_a_scheme_may_have_faster_nics():
    assert [parse(text, 2).speed for text in ("fifo", "fifo@2x", "ddp:5@0.5x@1")] == [1, 2, 0.5]
    assert parse("ddp:5@0.5x@1", 2).nics == 1
    with pytest.raises(ValueError, match="@2x"):
        parse("fifo@0x", 2)


def test_a_plain_name_uses_all_nics():
    scheme = parse("fifo", 3)
    assert (scheme.kind, scheme.nics, scheme.free, scheme.is_deft) == ("fifo", 3, False, True)


def test_suffixes_may_stand_in_any_order():
    for text in ("fifo:bucket_bytes=5MB:credit_bytes=8MB@1@free", "fifo@1:bucket_bytes=5MB@free:credit_bytes=8MB"):
        scheme = parse(text, 2)
        assert scheme.options == (("bucket_bytes", "5MB"), ("credit_bytes", "8MB"))
        assert scheme.nics == 1
        assert scheme.free
    naive = parse("mergecomp:merge_groups=even:4:compression=int8", 2)
    assert naive.options == (("merge_groups", "even:4"), ("compression", "int8"))


def test_ddp_stands_for_its_bucket_sizes_unless_one_is_given():
    assert [variant.bucket_mib for variant in parse("ddp@1", 2).variants()] == [1, 5, 25]
    assert [variant.bucket_mib for variant in parse("ddp:2.5", 2).variants()] == [2.5]


def test_gradients_may_be_added_up_by_ddp_and_by_any_policy():
    plain = parse("ddp-nosync-4@1", 2)
    assert (plain.kind, plain.passes, plain.nics, plain.is_plain_ddp) == ("ddp", 4, 1, False)
    assert [variant.bucket_mib for variant in plain.variants()] == [1, 5, 25]
    ours = parse("knapsack-paper-accumulate-3:bucket_bytes=5MB@free", 2)
    assert (ours.kind, ours.passes, ours.free) == ("knapsack-paper", 3, True)
    assert ours.options == (("bucket_bytes", "5MB"),)
    assert [ours.whole_updates(steps) for steps in (1, 3, 20)] == [3, 3, 21]


def test_ddps_hooks_take_a_bucket_size_and_powersgd_its_own_options():
    assert parse("ddp-fp16:25", 1).hook == "fp16"
    scheme = parse("ddp-powersgd:rank=2:5:start=10", 1)
    assert (scheme.hook, scheme.bucket_mib) == ("powersgd", 5)
    assert dict(scheme.options) == {"rank": "2", "start": "10"}
    assert not scheme.is_plain_ddp


def test_a_variant_shows_its_bucket_size():
    assert [variant.label for variant in parse("ddp-fp16", 2).variants()][1] == "ddp-fp16 (5 MiB)"
    assert parse("ddp:25", 2).variants()[0].label == "ddp:25"


def test_ddp_and_fsdp2_may_communicate_by_a_policy():
    over_deft = parse("bytescheduler-ddp:5:credit_bytes=8MB", 2)
    assert (over_deft.kind, over_deft.role, over_deft.bucket_mib) == ("bytescheduler", "deft-ddp", 5)
    assert over_deft.options == (("credit_bytes", "8MB"),)
    assert parse("fifo-ddp", 2).bucket_mib is None, "the backend chooses"
    assert not parse("fifo-ddp", 2).is_plain_ddp
    assert [parse(text, 2).role for text in ("fifo-fsdp2", "fsdp2", "fifo", "ddp")] == [
        "deft-fsdp2",
        "fsdp2",
        "deft",
        "ddp",
    ]


def test_fsdp2_needs_something_to_shard():
    schemes = parse_list("fifo-fsdp2", 2)
    check_workers(schemes, 2, accelerator=False)
    with pytest.raises(ValueError, match="--workers 2"):
        check_workers(schemes, 1, accelerator=False)
    with pytest.raises(ValueError, match="--accelerator"):
        check_workers(schemes, 2, accelerator=True)
    with pytest.raises(ValueError, match="`own` instead of DDP and FSDP2"):
        check_framework(schemes, "mxnet")


def test_a_policy_that_the_table_of_options_lacks_is_named():
    check_policies(parse_list("compute,ddp,ddp-fp16,fifo-accumulate-2", 1), ["fifo"])
    with pytest.raises(ValueError, match="no policy 'fife'; it has fifo, p3"):
        check_policies(parse_list("compute,fife@1", 1), ["fifo", "p3"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ddp-nosync-0", "1 or more"),
        ("ddp-accumulate-2", "ddp-nosync-K"),
        ("compute-accumulate-2", "NAME-accumulate-K"),
        ("fsdp2-accumulate-2", "NAME-accumulate-K"),
        ("ddp-int8", "ddp-fp16"),
        ("compute-ddp", "fifo-ddp"),
        ("fsdp2:5", ":5"),
        ("ddp-powersgd:rank=0", "rank=R"),
        ("ddp-powersgd:start=1", "start=STEP"),
        ("ddp-fp16:rank=2", "rank=2"),
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
