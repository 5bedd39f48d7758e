from pathlib import Path


def test_count():
    assert Path("/app/errors.txt").read_text().strip() == "2"


def test_messages():
    lines = Path("/app/messages.txt").read_text().splitlines()
    assert lines == ["disk is full", "disk is slow"]
