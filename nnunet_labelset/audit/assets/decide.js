(function () {
  "use strict";
  var data = JSON.parse(document.getElementById("decide-data").textContent);
  var byId = function (id) { return document.getElementById(id); };
  var make = function (tag, text, kind) {
    var element = document.createElement(tag);
    if (text !== undefined) { element.textContent = text; }
    if (kind) { element.className = kind; }
    return element;
  };
  var labels = data.labels, cases = data.cases, findings = data.findings;
  var start = cases.map(function (each) { return each.states.slice(); });
  var choices = findings.map(function () { return ""; });  // "", "correct" or "fine"
  var cells = [], rows = [], items = [], unsaved = false;
  var current = { list: findings.length > 0, item: 0, row: 0, column: 0 };

  // In how many of the other cases a label has voxels.
  var present = labels.map(function (_, l) {
    return cases.filter(function (each) { return each.drawn[l]; }).length;
  });
  var shareOfOthers = function (c, l) {
    return cases.length < 2 ? 0 : 100 * (present[l] - (cases[c].drawn[l] ? 1 : 0)) / (cases.length - 1);
  };
  var listed = {};
  findings.forEach(function (finding) {
    finding.labels.forEach(function (l) { listed[finding.case + "/" + l] = finding; });
  });

  // ---- what is drawn. The pictures of a case stand once in a rule, not in the style of every cell.
  document.head.appendChild(make("style", cases.map(function (each, c) {
    return "[data-pictures='" + c + "'] { background-image: url(" + each.picture + "); }";
  }).join("\n")));
  var show = function (element, c, l, size) {
    var scale = size / cases[c].side, column = l % data.columns, row = Math.floor(l / data.columns);
    var across = Math.min(data.columns, labels.length), down = Math.ceil(labels.length / data.columns);
    element.dataset.pictures = c;
    element.style.backgroundSize = across * cases[c].side * scale + "px " + down * cases[c].side * scale + "px";
    element.style.backgroundPosition = -column * size + "px " + -row * size + "px";
  };
  var words = function (c, l) {
    var state = cases[c].states[l];
    if (state === "wrong") { return "wrong: exclude"; }
    if (state === "no") { return "not drawn"; }
    return cases[c].drawn[l] ? "drawn" : "drawn: there is none";
  };
  var refresh = function (c, l) {
    var cell = cells[c][l], changed = cases[c].states[l] !== start[c][l];
    var out = cell.classList.contains("out") ? " out" : "";  // a decision does not change what the filter shows
    cell.className = "is-" + cases[c].states[l] + (changed ? " changed" : "") + out;
    cell.lastChild.textContent = words(c, l);
    cell.setAttribute("aria-label", cases[c].name + ", " + labels[l] + ": " + words(c, l));
  };
  var build = function () {
    var table = byId("grid"), head = table.createTHead().insertRow();
    head.appendChild(make("th", "case"));
    labels.forEach(function (name) { head.appendChild(make("th", name)); });
    var body = table.createTBody();
    cases.forEach(function (each, c) {
      var row = body.insertRow();
      row.appendChild(make("th", each.name)).scope = "row";
      cells.push(labels.map(function (_, l) {
        var cell = row.insertCell();
        cell.setAttribute("role", "gridcell");
        cell.tabIndex = -1;
        show(cell.appendChild(make("div", undefined, "tile")), c, l, 96);
        cell.appendChild(make("span", undefined, "state"));
        cell.addEventListener("click", function () { goTo(c, l); });
        cell.addEventListener("dblclick", function () { act("x"); });
        return cell;
      }));
      rows.push(row);
      labels.forEach(function (_, l) { refresh(c, l); });
    });
    findings.forEach(function (finding, i) { items.push(item(finding, i)); });
  };
  var item = function (finding, i) {
    var line = byId("findings").appendChild(make("li")), row = line.appendChild(make("div", undefined, "row"));
    line.tabIndex = -1;
    show(row.appendChild(make("div", undefined, "tile")), finding.case, finding.labels[0], 96);
    var names = finding.labels.map(function (l) { return labels[l]; }).join(", ");
    row.appendChild(make("span", cases[finding.case].name + ": " + names + " – " + finding.reason));
    var sure = finding.confidence === null ? "" : ", confidence " + finding.confidence;
    row.appendChild(make("span", "doubt " + finding.doubt + ", " + finding.volume + " ml" + sure, "note"));
    var choose = row.appendChild(make("span"));
    var drawn = cases[finding.case].drawn[finding.labels[0]];
    var reason = cases[finding.case].locked || (finding.isFault ? "" : "a gap already: nothing to correct");
    [["correct", drawn ? "wrong: exclude" : "forgotten: declare missing"], ["fine", "fine"]].forEach(function (pair) {
      var button = choose.appendChild(make("button", pair[1]));
      button.type = "button";
      button.tabIndex = -1;
      button.dataset.choice = pair[0];
      button.disabled = pair[0] === "correct" && reason !== "";
      button.title = button.disabled ? reason : "";
      button.addEventListener("click", function () { goToItem(i); decide(i, pair[0]); });
    });
    line.addEventListener("click", function () { goToItem(i); });
    return line;
  };

  // ---- decisions
  var alternative = function (c, l) {
    var first = start[c][l];
    return first === "yes" ? (cases[c].drawn[l] ? "wrong" : "no") : "yes";
  };
  var setState = function (c, l, state) {
    if (cases[c].locked) { byId("about").textContent = cases[c].name + ": " + cases[c].locked; return; }
    cases[c].states[l] = state;
    unsaved = true;
    refresh(c, l);
  };
  var decide = function (i, choice) {
    var finding = findings[i], button = items[i].querySelector("[data-choice='" + choice + "']");
    if (button && button.disabled) { byId("about").textContent = button.title; return; }
    choices[i] = choice;
    unsaved = true;
    finding.labels.forEach(function (l) {
      var first = start[finding.case][l];
      setState(finding.case, l, choice === "correct" && first === "yes" ? alternative(finding.case, l) : first);
    });
    Array.from(items[i].querySelectorAll("button")).forEach(function (each) {
      each.setAttribute("aria-pressed", String(each.dataset.choice === choice));
    });
    detail();
    count();
  };
  var act = function (key) {
    if (current.list) { decide(current.item, { x: "correct", f: "fine", u: "" }[key]); return; }
    var c = current.row, l = current.column;
    var changed = cases[c].states[l] !== start[c][l];
    setState(c, l, key === "x" && !changed ? alternative(c, l) : start[c][l]);
    detail();
    count();
  };

  // ---- filters
  var matches = function (c, l) {
    var kind = byId("show").value, label = byId("label").value;
    if (label !== "" && Number(label) !== l) { return false; }
    if (kind === "absent") { return !cases[c].drawn[l] && shareOfOthers(c, l) >= Number(byId("share").value); }
    if (kind === "found") { return Boolean(listed[c + "/" + l]); }
    return kind !== "changed" || cases[c].states[l] !== start[c][l];
  };
  var named = function (c) {
    return cases[c].name.toLowerCase().includes(byId("search").value.toLowerCase());
  };
  var itemMatches = function (i) {
    var finding = findings[i], label = byId("label").value;
    var why = byId("why").value;
    return named(finding.case) && (why === "" || finding.reason === why) &&
      (label === "" || finding.labels.includes(Number(label)));
  };
  var filter = function () {
    cases.forEach(function (_, c) {
      var any = false;
      labels.forEach(function (_, l) {
        var match = matches(c, l);
        any = any || match;
        cells[c][l].classList.toggle("out", !match);
      });
      rows[c].hidden = !(any && named(c));
    });
    items.forEach(function (line, i) { line.hidden = !itemMatches(i); });
    count();
  };
  var changedCases = function () {
    return cases.filter(function (each, c) {
      return each.states.some(function (state, l) { return state !== start[c][l]; });
    });
  };
  var count = function () {
    var visible = rows.filter(function (row) { return !row.hidden; }).length;
    var decided = choices.filter(Boolean).length;
    byId("count").textContent = visible + " of " + cases.length + " cases shown; " + changedCases().length + " changed" +
      (findings.length ? "; " + decided + " of " + findings.length + " findings decided" : "");
  };

  // ---- moving
  var detail = function () {
    var c = current.row, l = current.column, finding = listed[c + "/" + l];
    show(byId("large"), c, l, byId("large").clientWidth);
    byId("about").textContent = cases[c].name + ", " + labels[l] + ": " + words(c, l) + "; present in " +
      Math.round(shareOfOthers(c, l)) + " % of the others" + (finding ? "; " + finding.reason : "") +
      (cases[c].locked ? "; " + cases[c].locked : "");
  };
  var goTo = function (c, l) {
    cells[current.row][current.column].tabIndex = -1;
    current.list = false;
    current.row = c;
    current.column = l;
    cells[c][l].tabIndex = 0;
    cells[c][l].focus();
    detail();
  };
  var goToItem = function (i) {
    items[current.item].tabIndex = -1;
    items[current.item].removeAttribute("aria-current");
    current.list = true;
    current.item = i;
    current.row = findings[i].case;
    current.column = findings[i].labels[0];
    items[i].tabIndex = 0;
    items[i].setAttribute("aria-current", "true");
    items[i].focus();
    detail();
  };
  var next = function (by) {
    if (current.list) {
      for (var i = current.item + by; i >= 0 && i < items.length; i += by) {
        if (!items[i].hidden) { goToItem(i); return; }
      }
      return;
    }
    var width = labels.length, place = current.row * width + current.column;
    for (place += by; place >= 0 && place < cases.length * width; place += by) {
      var c = Math.floor(place / width), l = place % width;
      if (!rows[c].hidden && matches(c, l)) { goTo(c, l); return; }
    }
  };
  var move = function (key) {
    if (current.list) { next(key === "ArrowUp" || key === "ArrowLeft" ? -1 : 1); return; }
    var c = current.row, l = current.column, by = key === "ArrowUp" ? -1 : key === "ArrowDown" ? 1 : 0;
    if (by === 0) {
      goTo(c, Math.max(0, Math.min(labels.length - 1, l + (key === "ArrowLeft" ? -1 : 1))));
      return;
    }
    for (c += by; c >= 0 && c < cases.length; c += by) {
      if (!rows[c].hidden) { goTo(c, l); return; }
    }
  };

  // ---- the table
  var quoted = function (text) {
    var guard = /^'*[=+\-@\t\r]/.test(text) ? "'" : "";  // a spreadsheet would take it for a formula
    return '"' + guard + text.replace(/"/g, '""') + '"';
  };
  var tableText = function () {
    var lines = [data.header.map(quoted).join(",")];
    (data.savesAll ? cases : changedCases()).forEach(function (each) {
      var inState = function (state) {
        return labels.filter(function (_, l) { return each.states[l] === state; }).join(";");
      };
      lines.push([each.name, inState("yes"), inState("wrong")].map(quoted).join(","));
    });
    return lines.join("\n") + "\n";
  };
  var save = function () {
    if (!data.savesAll && !changedCases().length) {
      byId("command").textContent = "Nothing was changed: there is no table to save.";
      return;
    }
    var link = make("a");
    link.href = URL.createObjectURL(new Blob([tableText()], { type: "text/csv" }));
    link.download = data.table;
    link.click();
    unsaved = false;
    byId("command").textContent = "Saved as " + data.table + ". Then: " + data.command.replace("FILE", data.table);
  };

  // ---- events
  var keys = {
    n: function () { next(1); }, p: function () { next(-1); }, s: save,
    x: function () { act("x"); }, " ": function () { act("x"); }, f: function () { act("f"); }, u: function () { act("u"); },
    g: function () { if (current.list || !items.length) { goTo(current.row, current.column); } else { goToItem(current.item); } },
    "/": function () { byId("search").focus(); }
  };
  document.addEventListener("keydown", function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey) { return; }
    if (event.target.closest("input, select")) {
      if (event.key === "Escape" || event.key === "Enter") { event.preventDefault(); next(1); }
      return;
    }
    if (event.target.closest("button") && event.key === " ") { return; }
    if (event.key.indexOf("Arrow") === 0) { event.preventDefault(); move(event.key); return; }
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  byId("filters").addEventListener("input", filter);
  byId("filters").addEventListener("submit", function (event) { event.preventDefault(); });
  byId("save").addEventListener("click", save);
  window.addEventListener("resize", detail);
  window.addEventListener("beforeunload", function (event) { if (unsaved) { event.preventDefault(); } });
  build();
  filter();
  if (findings.length) { items[0].tabIndex = 0; goToItem(0); } else { goTo(0, 0); }
})();
