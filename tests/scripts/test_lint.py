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


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("auto now = std::chrono::system_clock::now();", True),
        ("clock_gettime(CLOCK_REALTIME, &t);", True),
        ("clock_gettime(CLOCK_MONOTONIC, &t);", False),
        ("::gettimeofday(&now, nullptr);", True),
        ("const std::time_t begun = time(nullptr);", True),
        ("const TimeUs at = link_time(0);", False),
        ("explicit Reactor(const Clock& clock = system_clock());", False),
        ("began = time.time()", True),
        ("began = time.monotonic()", False),
    ],
)
def test_a_line_that_reads_the_clock_of_day_is_found(lint, line, found):
    assert bool(lint.CLOCK_OF_DAY.search(line)) == found


def test_files_that_may_read_the_clock_of_day_do(lint):
    for name in lint.MAY_READ_CLOCK_OF_DAY:
        assert lint.CLOCK_OF_DAY.search((lint.ROOT / name).read_text()), f"{name} needs no exception any more"
