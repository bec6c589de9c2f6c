import io

from rich.console import Console

from docs.demo.progress import Steps


def test_without_a_terminal_there_are_plain_lines_at_each_quarter():
    output = io.StringIO()
    steps = Steps(Console(file=output, width=80))
    with steps.step("Posting", 1_000) as advance:
        for _ in range(10):
            advance(100)
    with steps.step("Rolling") as advance:
        advance(1)
    lines = output.getvalue().splitlines()
    assert lines[:4] == ["Posting ...", "  300 of 1,000", "  500 of 1,000", "  800 of 1,000"]
    assert lines[4].startswith("done Posting (1,000) in 0.")
    assert lines[5] == "Rolling ..."
    assert lines[6].startswith("done Rolling in 0.")
    assert "\x1b" not in output.getvalue()


def test_on_a_terminal_the_bar_goes_away_and_the_result_stays():
    output = io.StringIO()
    steps = Steps(Console(file=output, width=80, force_terminal=True))
    with steps.step("Posting", 1_000) as advance:
        advance(1_000)
    assert "Posting" in output.getvalue()
    assert "\x1b" in output.getvalue()
    assert "(1,000) in 0." in output.getvalue()
