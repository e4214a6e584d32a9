"""A file to share, taken apart: what onecard wrote, and the text that stands in it."""

import base64
import hashlib
import json
import re
from typing import Any

_TITLE = re.compile(r"(<title>)(.*?)(</title>)", re.DOTALL)
_WORDS = re.compile(r"(<noscript><pre>)(.*?)(</pre></noscript>)", re.DOTALL)
_DATA = re.compile(r'(<script type="application/json" id="data">)(.*?)(</script>)', re.DOTALL)
_SCRIPT = re.compile(r'<script(?: type="module")?>(.*?)</script>', re.DOTALL)
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">')
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def data_in(html: str) -> Any:
    found = _DATA.search(html)
    assert found
    return json.loads(found[2])


def skeleton(html: str) -> str:
    """All but the title, the words and the data: the same in every file, whatever a run says."""
    for part in (_TITLE, _WORDS, _DATA):
        assert len(part.findall(html)) == 1
        html = part.sub(r"\1\3", html)
    return html


def look_at_file(html: str) -> None:
    """Fails where text of a run could leave its place, or another script than onecard's could run."""
    assert not _CONTROLS.search(html)
    for part in (_TITLE, _WORDS):
        assert "<" not in part.search(html)[2]  # type: ignore[index]
    assert not re.search(r"[<>&]", _DATA.search(html)[2])  # type: ignore[index]
    assert _DATA.search(html)[2].isascii()  # type: ignore[index]
    bare = skeleton(html)
    assert bare.count("<script") == bare.count("</script>") == 3
    assert bare.count("<style>") == bare.count("</style>") == 1
    assert not re.search(r"<(?:link|img|iframe|object|base|form)\b|@import|url\(", bare)
    hashes = [
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (*_SCRIPT.findall(bare), *_STYLE.findall(bare))
    ]
    policy = _POLICY.search(bare)
    assert policy
    assert policy[1] == (
        f"default-src 'none'; script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}'; style-src 'sha256-{hashes[2]}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
