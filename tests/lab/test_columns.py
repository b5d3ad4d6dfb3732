"""The tables that the benchmarks print."""

from lab.columns import aligned


def test_texts_begin_on_the_left_and_numbers_end_on_the_right():
    rows = [("link", "mode", "1 M"), ("gloo:eth0", "alone", "7 ms"), ("ps", "together", "12 ms")]
    assert aligned(rows, texts=2) == [
        "link       mode        1 M",
        "--------------------------",
        "gloo:eth0  alone      7 ms",
        "ps         together  12 ms",
    ]


def test_a_column_that_nobody_fills_is_left_out():
    assert aligned([("scheme", "loss", "ms"), ("fifo", "", "5"), ("ddp", "", "10")]) == [
        "scheme  ms",
        "----------",
        "fifo     5",
        "ddp     10",
    ]
    assert aligned([("scheme", "loss", "ms"), ("fifo", "", "5"), ("ddp", "0.1", "10")])[0] == "scheme  loss  ms"
