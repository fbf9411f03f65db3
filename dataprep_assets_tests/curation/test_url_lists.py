"""URLs are looked up in lists of domains and URLs, in one normal form and by whole labels and parts of a path."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dataprep_assets.curation.declaration import ConfiguredTagger, add_tagger_columns, build_taggers
from dataprep_assets.curation.table import DocumentBatch
from dataprep_assets.curation.tagging import BatchTagger, compute_tags
from dataprep_assets.curation.web.addresses import parse_address, parse_url
from dataprep_assets.curation.web.url_lists import UrlList
from dataprep_assets.errors import ConfigError
from dataprep_assets.stores.files import digest_value
from dataprep_assets_tests.messages import raises


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("https://user:pw@WWW.Example.COM.:8080/a/%7eb?x=1#f", "www.example.com", "/a/~b?x=1"),
        ("example.com", "example.com", "/"),
        ("//cdn.example.com?q", "cdn.example.com", "/?q"),
        ("http://bücher.example/ü%2f", "xn--bcher-kva.example", "/%C3%BC%2F"),
        ("http://straße.example", "xn--strae-oqa.example", "/"),
        ("http://foo_bar.BÜCHER。example", "foo_bar.xn--bcher-kva.example", "/"),
        ("http://i❤.example", "xn--i-7iq.example", "/"),
        ("foo_bar.example.com/2012", "foo_bar.example.com", "/2012"),
        ("http://[2001:DB8::1]:80/a", "[2001:db8::1]", "/a"),
    ],
)
def test_an_address_has_one_form(url: str, host: str, path: str) -> None:
    assert parse_address(url) == (host, path)


@pytest.mark.parametrize("text", ["", ".", "no url", "http:example.com", "https://", r"http://a\b.com", "a" * 300])
def test_a_text_without_a_host_has_no_address(text: str) -> None:
    assert parse_address(text) is None


@pytest.mark.parametrize(
    "value",
    [
        "n/a",
        "bob@private.example",
        "mailto:bob@private.example",
        "javascript:alert(1)",
        "not a url 6",
        "localhost",
        "e.g.",
        5,
    ],
)
def test_a_value_that_is_not_a_url_has_no_host(value: object) -> None:
    assert parse_url(value) is None


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://localhost/a", "localhost"),
        ("https://bob@example.com", "example.com"),
        ("Example.com/a", "example.com"),
        ("10.0.0.1:80/a", "10.0.0.1"),
        ("//cdn/a", "cdn"),
        ("medium.com/@user/post", "medium.com"),
        ("https://-name-.example.com", "-name-.example.com"),
        ("example.com?user=a@b.c", "example.com"),
    ],
)
def test_a_url_without_a_scheme_begins_with_a_domain_name(url: str, host: str) -> None:
    address = parse_url(url)
    assert address is not None
    assert address.host == host


def find_listed(tmp_path: Path, lines: str, urls: Sequence[str]) -> list[str]:
    """Return the URLs that are on a list."""
    path = tmp_path / "list.txt"
    path.write_text(lines)
    addresses = [parse_address(url) for url in urls]
    mask = UrlList.read(str(path)).contains([address for address in addresses if address is not None])
    return [url for url, is_listed in zip(urls, mask.tolist(), strict=True) if is_listed]


def test_a_domain_includes_its_subdomains_but_no_longer_name(tmp_path: Path) -> None:
    urls = ["http://bad.com", "https://www.bad.com/x", "notbad.com", "bad.com.org", "http://good.org/bad.com"]
    assert find_listed(tmp_path, "bad.com\n", urls) == urls[:2]


def test_a_path_includes_the_urls_below_it_but_no_longer_name(tmp_path: Path) -> None:
    urls = [
        *("http://a.com/blog", "https://www.a.com/blog/", "a.com/blog/1/2?x=1", "a.com/blog?x=1"),
        *("a.com/blogs", "a.com", "a.com/x/blog", "b.com/blog"),
    ]
    assert find_listed(tmp_path, "https://A.com/blog/\n", urls) == urls[:4]


def test_a_query_is_a_part_of_a_path(tmp_path: Path) -> None:
    urls = ["a.com/w?v=1", "a.com/w?v=1&t=2", "a.com/w?v=12", "a.com/w", "a.com/w?t=2&v=1"]
    assert find_listed(tmp_path, "a.com/w?v=1\n", urls) == urls[:2]


def test_comments_empty_lines_and_line_endings_are_ignored(tmp_path: Path) -> None:
    lines = "# bad.org\r\n\r\n  Bücher.example  # note\r\nb.com/#top\r\n10.0.0.1"
    urls = ["http://xn--bcher-kva.example/x", "b.com/y", "http://10.0.0.1:80/", "bad.org", "note"]
    assert find_listed(tmp_path, lines, urls) == urls[:3]


@pytest.mark.parametrize("line", ["*.bad.com", "0.0.0.0 bad.com", "||bad.com^", "a..b", "https://", "bad.com,adult"])
def test_a_line_of_another_form_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    with raises(ConfigError, "list.txt", "line 3", line):
        find_listed(tmp_path, f"a.com\n#\n{line}\n", [])


def test_a_line_that_is_not_text_is_refused_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_bytes(b"a.com\n\xff.com\n")
    with raises(ConfigError, "list.txt", "line 2", "UTF-8"):
        UrlList.read(str(tmp_path / "list.txt"))


@pytest.mark.parametrize("lines", ["", "\n\n", "# bad.org\n  \n# b.com\n"])
def test_a_list_without_domains_is_refused(tmp_path: Path, lines: str) -> None:
    with raises(ConfigError, "list.txt", "no domains or URLs"):
        find_listed(tmp_path, lines, ["http://bad.org"])


def build(folder: Path, **keys: object) -> BatchTagger:
    """Return the tagger of a declaration."""
    (tagger,) = build_taggers([ConfiguredTagger.model_validate(keys)], folder)
    assert isinstance(tagger, BatchTagger)
    return tagger


def test_each_list_is_a_column_that_is_null_without_a_url(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "adult.txt").write_text("bad.com\n")
    (tmp_path / "lists" / "fraud.txt").write_text("worse.com\n")
    (tmp_path / "out.txt").write_text("other.com\n")
    tagger = build(tmp_path, url_lists={"lists": {"blocked": "lists/*.txt", "optout": ["out.txt"]}})
    urls = ["http://bad.com/", None, "no url", "http://good.com/", "http://www.worse.com/a"]
    rows = {"row": list(range(1, 6)), "url": urls}
    batch = DocumentBatch(rows, list(range(5)), ["text"] * 5, "a.jsonl")
    assert compute_tags(tagger, batch, sensitive=False) == {
        "blocked": [True, None, None, False, True],
        "optout": [False, None, None, False, False],
    }


def test_the_version_depends_on_the_files_and_the_column(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a.com\n")
    tagger = build(tmp_path, url_lists={"lists": {"a": "a.txt"}})
    versions = {tagger.version, build(tmp_path, url_lists={"lists": {"a": "a.txt"}, "column": "host"}).version}
    (tmp_path / "a.txt").write_text("b.com\n# more\n")
    assert len({*versions, tagger.version}) == 3
    (tmp_path / "a.txt").unlink()
    with raises(ConfigError, "url_lists", str(tmp_path / "a.txt")):
        _ = tagger.version


def test_the_key_depends_on_the_order_of_the_lists_because_columns_have_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a.com\n")
    (tmp_path / "b.txt").write_text("b.com\n")
    lists = {"a": "a.txt", "b": "b.txt"}
    taggers = [build(tmp_path, url_lists={"lists": {name: lists[name] for name in order}}) for order in ("ab", "ba")]
    assert [[*tagger.columns] for tagger in taggers] == [["a", "b"], ["b", "a"]]
    assert digest_value(taggers[0].key_parts) != digest_value(taggers[1].key_parts)


def test_a_column_that_the_table_lacks_is_refused(tmp_path: Path) -> None:
    tagger = build(tmp_path, url_lists={"lists": {"a": "a.txt"}})
    with raises(ConfigError, "url_lists", "url", "host, source", "keep_fields"):
        add_tagger_columns({"host": "string", "source": "string", "bytes": "integer"}, [tagger])


@pytest.mark.parametrize(
    "keys",
    [{"columns": {"b": "boolean"}}, {"version": "2"}, {"files": ["a.txt"]}, {"function": "a:b"}, {"timeout": "1h"}],
)
def test_lists_refuse_the_keys_of_other_taggers(keys: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(keys))):
        ConfiguredTagger.model_validate({"url_lists": {"lists": {"a": "a.txt"}}, **keys})
