"""scripts/lint: checks that are its own."""

import pytest


@pytest.fixture(scope="module")
def lint(load):
    return load("scripts/lint")


@pytest.mark.parametrize(
    ("text", "unused"),
    [
        ("using std::chrono::seconds;\nseconds a;\n", []),
        ("using std::chrono::seconds;\nstd::chrono::milliseconds a;\n", ["seconds"]),
        ("namespace fs = std::filesystem;\nusing std::vector;\nvector<int> a;\n", ["fs"]),
        ("namespace fs = std::filesystem;\nfs::path a;\n", []),
        ("namespace deft {\nusing model::Plan;\n}  // namespace deft\n", ["Plan"]),
        ("struct A : B {\n  using B::start;\n};\n", []),  # for whoever uses A
        ("using namespace std::literals;\nusing Name = std::string;\n", []),
    ],
)
def test_a_name_that_a_source_declares_for_itself_and_does_not_use_is_found(lint, text, unused):
    assert lint.unused_names(text) == unused
