from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recovery.pattern import MAX_CLASSES, PatternError, compile_pattern


def hits(pattern: str, line: str) -> bool:
    return compile_pattern(pattern).matches(f"\n{line.lower()}\n")


@pytest.mark.parametrize(
    ("pattern", "line", "expected"),
    [
        ("killed process", "Out of memory: Killed process 7", True),
        (r"xid \(pci:[0-9a-f:.]{4,20}\): 79,", "NVRM: Xid (PCI:0000:5e:00): 79, GPU", True),
        (r"xid \(pci:[0-9a-f:.]{4,20}\): 7,", "NVRM: Xid (PCI:0000:5e:00): 79, GPU", False),
        ("error 12[^0-9]", "completion with error 12", True),
        ("error 12[^0-9]", "completion with error 129", False),
        ("link.*(down|lost)", "link 3 is lost", True),
        ("link.*(down|lost)", "lost link", False),
        ("one.*two.*three.*four", "one two three four", True),
        ("one.*two.*one", "one two", False),
        ("[^a-z]correctable", "1 correctable", True),
        ("[^a-z]correctable", "uncorrectable", False),
        ("[ ]{0,9}: active", "slowdown   : Active", True),
        ("sizes[0-9]{2,2}x", "sizes12x", True),
        ("größe", "GRÖSSE Größe", True),
    ],
)
def test_matches(pattern: str, line: str, expected: bool) -> None:
    assert hits(pattern, line) is expected


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("", "empty"),
        ("Xid", "capital"),
        ("ab", "no literal text of 3"),
        ("[a-z]{0,64}", "no literal text of 3"),
        ("abc[a-z]{0,65}:", "at most 64"),
        ("abc[a-z]*", "repeated as"),
        ("abc[a-z]{0,9}x", "which may come next"),
        ("abc[a-z]{0,9}[0-9]{0,9}x", "which may come next"),
        ("abc[a-z]{0,9}(xyz|1)", "which may come next"),
        ("abc[^x]{0,9}[y-z]", "which may come next"),
        ("(error|errors)", "begins another"),
        ("abc(d|)", "begins another"),
        ("abc(d|e){0,3}", "only classes are repeated"),
        ("a.*bcd.*e.*f.*g", "more than 3 gaps"),
        ("abc.*", "nothing stands beside a gap"),
        ("abc.d", "a dot is written"),
        ("abc$(d", "( without )"),
        ("abc[", "[ without ]"),
        ("abc[]", "class is empty"),
        ("abc[z-a]", "runs backwards"),
        ("abc]", "has no meaning"),
        (r"abc\d", "stands only before"),
        ("abc[a]{1}", "least,most"),
        ("abc[a]{3,2}", "at least as often"),
        ("abc" + "[0-9]{0,9}[a-z]{0,9}" * MAX_CLASSES, "more than"),
        ("x" * 401, "longer than"),
    ],
)
def test_what_could_backtrack_or_is_unknown_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(PatternError, match=re.escape(says)):
        compile_pattern(pattern)


TEXT = st.text(alphabet="ab:x19.( \n", max_size=30)


@given(st.text(alphabet="abx:[]{}()|.*\\,0139^-", max_size=24), TEXT)
def test_any_text_is_refused_with_its_place_or_matches_something(pattern: str, line: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except PatternError as error:
        place = error.at
    else:
        assert compiled.matches(f"\n{line}\n") in (True, False)
        return
    assert 0 <= place <= len(pattern)


@given(
    st.lists(st.sampled_from(["abc", "[0-9]{0,5}", "(xyz|uvw)", "[^0-9]", ".*"]), min_size=1, max_size=5),
    TEXT,
)
def test_agrees_with_a_backtracking_search_where_there_is_no_gap(pieces: list[str], line: str) -> None:
    source = "".join(pieces)
    try:
        compiled = compile_pattern(source)
    except PatternError:
        return
    if ".*" in source:
        return
    text = f"\n{line}\n"
    assert compiled.matches(text) == (re.search(source, text) is not None)


BOMBS = {
    "class before what never comes": ("[a-y]{0,64}z" * 1 + "qqq", "a" * 4094),
    "eight classes": ("".join(f"[{c}]{{0,64}}" for c in "abcdefgh") + "qqq", "abcdefgh" * 511),
    "four parts": ("aaa.*aaa.*aaa.*aaq", "a" * 4094),
    "alternatives": ("(aaaa|aaab|aaac)(aaaa|aaab)aaz", "a" * 4094),
}


@pytest.mark.parametrize("name", BOMBS)
def test_work_on_a_bomb_grows_with_the_line_and_not_faster(name: str) -> None:
    """Ten times the line costs about ten times the time; a backtracking search would cost a hundred times or more."""
    source, line = BOMBS[name]
    pattern = compile_pattern(source)

    def seconds(text: str) -> float:
        best = 1.0
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(3):
                assert not pattern.matches(text)
            best = min(best, time.perf_counter() - begin)
        return best

    short, long = seconds(f"\n{line[:400]}\n"), seconds(f"\n{line[:4000]}\n")
    assert long < 60 * max(short, 2e-6)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("efa_0: not responding", True),
        ("rank 3 efa: reset", True),
        ("[default3]: connection reset by peer", False),
    ],
)
def test_short_word_before_a_gap_is_no_end_of_another(line: str, expected: bool) -> None:
    assert hits("efa.*(reset|not responding)", line) is expected
