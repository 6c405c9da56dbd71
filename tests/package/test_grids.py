"""A grid within one case goes through all its values, and each failure is named."""

import pytest
from grids import Failures, each


def test_every_failure_is_named_and_no_value_is_left_out(monkeypatch):
    monkeypatch.delenv("FIRST_FAILURE", raising=False)
    seen = []

    @each("name, more", {"one": {}, "two": {"size": 2}})
    @each("part", lambda name, known: [f"{name} {part}" for part in known])
    def check(part, name, more, monkeypatch):
        seen.append((part, name, more))
        if part == "one b":
            with pytest.raises(ValueError):
                int("3")
        assert part != "two a", "the value\nis wrong"

    with pytest.raises(Failures) as caught:
        check(known="abc")
    assert [part for part, *_ in seen] == ["one a", "one b", "one c", "two a", "two b", "two c"]
    (first, did_not_raise), (second, wrong) = caught.value.failures
    assert first == "one defaults, one b" and "DID NOT RAISE" in did_not_raise
    assert second == "two size=2, two a" and "the value; is wrong" in wrong
    assert [what.split(":")[0] for what in (did_not_raise, wrong)] == ["line 16", "line 18"]
    assert str(caught.value).startswith("2 of the grid fail:\n  one defaults, one b: line 16: ")


def test_the_first_failure_may_end_a_grid(monkeypatch):
    @each("size", [1, 2, 3])
    def check(size):
        seen.append(size)
        assert size < 2

    for words, expected in ((["FIRST_FAILURE"], [1, 2]), ([], [1, 2, 3])):
        seen = []
        with monkeypatch.context() as patch, pytest.raises(Failures):
            patch.delenv("FIRST_FAILURE", raising=False)
            [patch.setenv(word, "1") for word in words]
            check()
        assert seen == expected


def test_a_grid_of_nothing_fails():
    with pytest.raises(AssertionError, match="there are no name to test"):
        each("name", [])(lambda name: None)()


@pytest.mark.parametrize("size", [1, 2])
@each("key", ["a", "b"])
def test_each_value_has_a_patch_of_its_own(size, key, monkeypatch, tmp_path):
    """Fixtures and parameters from outside come as they do without a grid."""
    assert not hasattr(each, "a") and not hasattr(each, "b") and size < 3 and tmp_path.is_dir()
    monkeypatch.setattr(each, key, size, raising=False)
