"""The properties parser: hand-made cases, round trips, and Java's own parser as the judge."""

from __future__ import annotations

import base64
import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemill.config import ConfigError
from tidemill.config.properties import Property, parse_properties

CASES = {
    "a=b": [("a", "b")],
    "a = b ": [("a", "b ")],
    "a:b": [("a", "b")],
    "a b": [("a", "b")],
    "a": [("a", "")],
    "=b": [("", "b")],
    "a==b": [("a", "=b")],
    "a : = b": [("a", "= b")],
    "# no\n! no\n\n  \t\n a=b": [("a", "b")],
    "a=b\\\n   c": [("a", "bc")],
    "a=b\\\n# c": [("a", "b# c")],
    "a=b\\\n\nc=d": [("a", "b"), ("c", "d")],
    "a=b\\\\\nc=d": [("a", "b\\"), ("c", "d")],
    "a=b\\": [("a", "b")],
    "\\\n\na=b": [("a", "b")],
    "a\\=b=c": [("a=b", "c")],
    "a\\ b=c": [("a b", "c")],
    "a=\\u0041\\t\\q": [("a", "A\tq")],
    "a=1\ra=2\r\nb=3": [("a", "1"), ("a", "2"), ("b", "3")],
    "listeners=PLAINTEXT://:9092": [("listeners", "PLAINTEXT://:9092")],
}


@pytest.mark.parametrize(("text", "expected"), CASES.items())
def test_hand_made_cases(text: str, expected: list[tuple[str, str]]) -> None:
    assert [(key, value) for _, key, value in parse_properties(text)] == expected


def test_lines_are_counted_where_an_entry_starts() -> None:
    text = "# first\na=1\n\nb=2\\\n 3\nc=4\n"
    assert [*parse_properties(text)] == [
        Property(2, "a", "1"),
        Property(4, "b", "23"),
        Property(6, "c", "4"),
    ]


def test_a_broken_escape_names_its_line_and_not_its_text() -> None:
    """Rule 3.4.6: the line may hold a password, so the message must not."""
    with pytest.raises(ConfigError, match=r"^line 2: ") as caught:
        [*parse_properties("a=1\nssl.key.password=hunter2\\u00zz")]
    assert "hunter2" not in caught.value.message


def written(key: str, value: str) -> str:
    """An entry in the spelling that Java's `Properties.store` would use."""

    def escaped(text: str, specials: str) -> str:
        out = []
        for at, character in enumerate(text):
            if character in specials or character == "\\" or (character == " " and at == 0):
                out.append("\\" + character)
            elif character in "\t\n\r\f":
                out.append("\\" + {"\t": "t", "\n": "n", "\r": "r", "\f": "f"}[character])
            elif ord(character) < 32 or 126 < ord(character) < 0x10000:
                out.append(f"\\u{ord(character):04x}")
            else:
                out.append(character)
        return "".join(out)

    return f"{escaped(key, ' =:#!')}={escaped(value, '#!=:')}"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(st.lists(st.tuples(texts, texts), max_size=8))
@example([("#a", " b"), ("", "\\")])
def test_what_is_written_is_read_again(entries: list[tuple[str, str]]) -> None:
    text = "\n".join(written(key, value) for key, value in entries)
    assert [(key, value) for _, key, value in parse_properties(text)] == entries


@given(st.text(alphabet="ab=: \t\f\\#!\n\r\\u01", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        entries = [*parse_properties(text)]
    except ConfigError:
        return
    assert all(entry.line >= 1 for entry in entries)


JUDGE = """
import java.io.*; import java.util.*;
public class Judge {
  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    Base64.Encoder encoder = Base64.getEncoder();
    for (String line; (line = in.readLine()) != null; ) {
      StringBuilder out = new StringBuilder();
      try {
        Properties properties = new Properties();
        properties.load(new StringReader(new String(Base64.getDecoder().decode(line), "UTF-8")));
        for (String name : new TreeSet<>(properties.stringPropertyNames()))
          out.append(encoder.encodeToString(name.getBytes("UTF-8"))).append(',')
             .append(encoder.encodeToString(properties.getProperty(name).getBytes("UTF-8")))
             .append(';');
      } catch (IllegalArgumentException e) { out.append("refused"); }
      System.out.println(out);
    }
  }
}
"""


def _ours(text: str) -> str | dict[str, str]:
    try:
        return {key: value for _, key, value in parse_properties(text)}
    except ConfigError:
        return "refused"


def _theirs(line: str) -> str | dict[str, str]:
    if line == "refused":
        return line
    pairs = (pair.split(",") for pair in line.split(";") if pair)
    return {_decoded(key): _decoded(value) for key, value in pairs}


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


@pytest.mark.reference
@pytest.mark.skipif(shutil.which("javac") is None, reason="NO REFERENCE: no Java compiler here")
def test_java_reads_the_same(tmp_path: Path) -> None:
    source = tmp_path / "Judge.java"
    source.write_text(JUDGE)
    chance = random.Random(20)
    alphabet = "abc=: \t\f\\#!\n\r\\u0041é"
    texts = [
        *CASES,
        *("".join(chance.choices(alphabet, k=chance.randint(0, 40))) for _ in range(3000)),
    ]
    sent = "\n".join(base64.b64encode(text.encode()).decode() for text in texts) + "\n"
    judged = subprocess.run(
        ["java", str(source)], input=sent, capture_output=True, text=True, timeout=60
    )
    assert judged.returncode == 0, judged.stderr
    for text, line in zip(texts, judged.stdout.split("\n"), strict=False):
        assert _ours(text) == _theirs(line), json.dumps(text)
