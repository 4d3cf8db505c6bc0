"""A real browser that opens a page, presses keys and tells what the page then says."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")

# Runs inside of the page. What would be downloaded is caught, and any alert or error is told.
BEFORE = """<script>
window.told = {alerts: 0, errors: [], files: []};
window.alert = function () { window.told.alerts += 1; };
window.addEventListener("error", function (event) { window.told.errors.push(event.message); });
URL.createObjectURL = function (blob) { blob.text().then(function (t) { window.told.files.push(t); }); return "#"; };
</script>"""
AFTER = """<script>
var keys = %s;
keys.forEach(function (key) {
  if (key.indexOf("#") === 0) {
    var words = key.split("="), field = document.querySelector(words[0]);
    field.value = words[1];
    field.dispatchEvent(new Event("input", {bubbles: true}));
    return;
  }
  var at = document.activeElement || document.body;
  at.dispatchEvent(new KeyboardEvent("keydown", {key: key, bubbles: true, cancelable: true}));
});
setTimeout(function () {
  window.told.rows = Array.from(document.querySelectorAll("#grid tbody tr")).filter(function (row) { return !row.hidden; }).length;
  window.told.count = document.getElementById("count").textContent;
  window.told.focus = document.activeElement.getAttribute("aria-label") || document.activeElement.tagName;
  window.told.fetched = performance.getEntriesByType("resource").map(function (e) { return e.name; })
    .filter(function (name) { return name.indexOf("data:") !== 0; });
  var told = document.createElement("pre");
  told.id = "told";
  told.textContent = JSON.stringify(window.told);
  document.body.appendChild(told);
}, 300);
</script>"""


def press(page: Path, keys: Sequence[str], folder: Path) -> dict[str, Any]:
    """Open a page, press keys (`#id=value` sets a field), and return what happened."""
    assert CHROMIUM is not None
    text = page.read_text()
    text = text.replace("<title>", BEFORE + "<title>", 1)
    end = text.rindex("</body>")
    copy = folder / "pressed.html"
    copy.write_text(text[:end] + AFTER % json.dumps(list(keys)) + text[end:])
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=20000",
        "--dump-dom",
        copy.as_uri(),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    told = re.search(r'<pre id="told">(.*?)</pre>', run.stdout, re.DOTALL)
    assert told, run.stderr[-2000:]
    return json.loads(html.unescape(told[1]))
