(function () {
  "use strict";
  var all = function (selector, root) { return Array.from((root || document).querySelectorAll(selector)); };
  var make = function (tag, text, kind) {
    var element = document.createElement(tag);
    if (text !== undefined) { element.textContent = text; }
    if (kind) { element.className = kind; }
    return element;
  };

  // Empty values last; numbers as numbers; words with their numbers in order.
  var collator = new Intl.Collator(undefined, { numeric: true });
  var compare = function (x, y, down) {
    if (x === "" || y === "") { return (x === "") - (y === ""); }
    var order = isNaN(x) || isNaN(y) ? collator.compare(x, y) : x - y;
    return down ? -order : order;
  };
  var turn = function (head) {
    var down = head.getAttribute("aria-sort") === "ascending";
    all("th", head.parentNode).forEach(function (other) { other.removeAttribute("aria-sort"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    return down;
  };

  // Not <button>: browsers leave those out of headings that are repeated on paper.
  var headings = function (table, sort) {
    all("thead span", table).forEach(function (name) {
      name.tabIndex = 0;
      name.setAttribute("role", "button");
      var act = function () { sort(name.parentNode, turn(name.parentNode)); };
      name.addEventListener("click", act);
      name.addEventListener("keydown", function (event) {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); }
      });
    });
  };

  all("table.sortable").forEach(function (table) {
    headings(table, function (head, down) {
      var body = table.tBodies[0];
      var keyed = all("tbody tr", table).map(function (row) {
        var cell = row.cells[head.cellIndex];
        return [(cell.hasAttribute("data-v") ? cell.getAttribute("data-v") : cell.textContent).trim(), row];
      });
      keyed.sort(function (a, b) { return compare(a[0], b[0], down); });
      keyed.forEach(function (pair) { body.appendChild(pair[1]); });
      body.removeAttribute("class");
      all("tbody", table).slice(1).forEach(function (empty) { empty.remove(); });
    });
  });

  // All scores: the page holds the numbers as text and shows a few rows of them at a time.
  var source = document.getElementById("scores-data"), data = source && JSON.parse(source.textContent);
  if (data) {
    var area = document.getElementById("scores-area"), table = area.querySelector("table");
    var search = area.querySelector("input"), choice = area.querySelector("select"), count = area.querySelector("output");
    var back = area.querySelector("[data-by='-1']"), on = area.querySelector("[data-by='1']");
    var width = data.structures.length, methods = data.methods.length, page = 0, down = false, key = 2, rows = [];
    var words = [], columns = [], metric;
    var plain = function (text) { return text.toLowerCase().replace(/_/g, " "); };  // as labels are shown
    data.cases.forEach(function (name, c) {
      data.structures.forEach(function (label) { words.push(plain(name + " " + label + " " + data.groups[c])); });
    });
    var value = function (row, column) {
      if (column === 0) { return data.cases[Math.floor(row / width)]; }
      if (column === 1) { return data.structures[row % width]; }
      if (column < 2 + methods) { return columns[column - 2][row]; }
      var known = columns.map(function (of) { return of[row]; }).filter(function (x) { return x !== ""; });
      if (known.length < 2) { return ""; }
      return methods === 2 ? known[1] - known[0] : Math.max.apply(null, known) - Math.min.apply(null, known);
    };
    var shown = function (x) { return x === "" ? "\u2013" : (x / data.factor).toFixed(metric.digits); };
    var draw = function () {
      var body = make("tbody"), last = Math.max(0, Math.ceil(rows.length / data.rows) - 1);
      page = Math.min(Math.max(page, 0), last);
      rows.slice(page * data.rows, (page + 1) * data.rows).forEach(function (row) {
        var line = make("tr"), name = make("th", value(row, 0));
        name.scope = "row";
        line.append(name, make("td", value(row, 1), "text"));
        columns.forEach(function (of, method) {
          var word = data.words[data.outcomes[method][row]];
          line.append(make("td", shown(of[row]) + (word ? " " + word : ""), word ? "alarm" : ""));
        });
        if (methods > 1) {
          var gap = value(row, 2 + methods);
          line.append(make("td", (methods === 2 && gap > 0 ? "+" : "") + shown(gap)));
        }
        body.append(line);
      });
      table.replaceChild(body, table.tBodies[0]);
      count.textContent = rows.length ? "rows " + (page * data.rows + 1) + " to " +
        Math.min(rows.length, (page + 1) * data.rows) + " of " + rows.length : "nothing found";
      back.disabled = page === 0;
      on.disabled = page === last;
    };
    var update = function () {
      var wanted = plain(search.value).split(/\s+/).filter(Boolean);
      rows = [];
      words.forEach(function (text, row) {
        if (wanted.every(function (word) { return text.includes(word); }) &&
            columns.some(function (of) { return of[row] !== ""; })) { rows.push(row); }
      });
      var keys = rows.map(function (row) { return value(row, key); });
      var order = rows.map(function (_, index) { return index; });
      order.sort(function (a, b) { return compare(keys[a], keys[b], down) || rows[a] - rows[b]; });
      rows = order.map(function (index) { return rows[index]; });
      page = 0;
      draw();
    };
    var choose = function () {
      metric = data.metrics[choice.value];
      // The worst of the first method on top.
      down = metric.better === "lower";
      key = 2;
      all("th", table.tHead).forEach(function (head) { head.removeAttribute("aria-sort"); });
      table.tHead.rows[0].cells[2].setAttribute("aria-sort", down ? "descending" : "ascending");
      columns = metric.values.map(function (text) {
        return text.split(",").map(function (x) { return x === "" ? "" : +x; });
      });
      update();
    };
    headings(table, function (head, turned) { down = turned; key = head.cellIndex; update(); });
    search.addEventListener("input", update);
    choice.addEventListener("change", choose);
    [back, on].forEach(function (button) {
      button.addEventListener("click", function () { page += +button.dataset.by; draw(); });
    });
    choose();
  }

  // Slices: the pictures are windows on a column of slices.
  all("input[data-moves]").forEach(function (slider) {
    var pictures = all("svg[data-slices='" + slider.dataset.moves + "']"), output = slider.closest("p").querySelector("output");
    var move = function () {
      pictures.forEach(function (picture) {
        var box = picture.viewBox.baseVal;
        picture.setAttribute("viewBox", [box.x, slider.value * slider.dataset.step, box.width, box.height].join(" "));
      });
      output.textContent = +slider.value + 1 + " of " + (+slider.max + 1);
    };
    slider.addEventListener("input", move);
    move();
  });
  all(".tools[hidden]").forEach(function (tools) { tools.hidden = false; });

  // The case of a mark: of that under the pointer, or of that which the arrow keys have reached.
  var tip = make("div");
  tip.id = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  document.body.append(tip);
  var marks = function (svg) {
    var found = [];
    all("path[data-i]", svg).forEach(function (path) {
      var numbers = path.dataset.i.split(" "), names = data.cases;
      if (numbers[0] === "!") { names = names.filter(function (_, i) { return numbers.indexOf(String(i)) < 0; }); }
      path.getAttribute("d").split("M").slice(1).forEach(function (mark, index) {
        var place = mark.split(/[ a-z]/);
        found.push({
          x: +place[0], y: +place[1], path: path,
          name: names[numbers[0] === "!" ? index : +numbers[index]] + (path.classList.contains("crosses") ? ", missed or invented" : "")
        });
      });
    });
    return found;
  };
  var tell = function (name, left, top) {
    tip.textContent = name;
    tip.hidden = !name;
    tip.style.left = Math.min(left + 12, document.documentElement.clientWidth - 160) + "px";
    tip.style.top = top + 14 + "px";
  };
  document.addEventListener("pointermove", function (event) {
    var svg = data && event.target.closest && event.target.closest("figure svg"), least = 6, name = "";
    if (!svg && tip.hidden) { return; }
    (svg ? marks(svg) : []).forEach(function (mark) {
      var at = new DOMPoint(event.clientX, event.clientY).matrixTransform(mark.path.getScreenCTM().inverse());
      var distance = Math.hypot(mark.x - at.x, mark.y - at.y);
      if (distance <= least) { least = distance; name = mark.name; }
    });
    tell(name, event.pageX, event.pageY);
  });
  all("figure svg").forEach(function (svg) {
    if (!data || !svg.querySelector("path[data-i]")) { return; }
    var at = -1;
    svg.tabIndex = 0;
    svg.addEventListener("keydown", function (event) {
      var step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") { tell("", 0, 0); }
      if (!step) { return; }
      event.preventDefault();
      var found = marks(svg).sort(function (a, b) { return a.path === b.path ? a.x - b.x : 0; });
      at = at < 0 && step < 0 ? found.length - 1 : (at + step + found.length) % found.length;
      var point = new DOMPoint(found[at].x, found[at].y).matrixTransform(found[at].path.getScreenCTM());
      tell(found[at].name, point.x + window.scrollX, point.y + window.scrollY);
      show(found[at]);
    });
    svg.addEventListener("blur", function () { tell("", 0, 0); show(null); });
  });
  // A ring around the mark that the keys have reached.
  var ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  ring.setAttribute("class", "ring");
  ring.setAttribute("r", 7);
  function show(mark) {
    ring.remove();
    if (!mark) { return; }
    ring.setAttribute("cx", mark.x);
    ring.setAttribute("cy", mark.y);
    mark.path.parentNode.append(ring);
  }

  // Every figure as an SVG file that needs nothing else.
  var alone = function (figure) {
    var outer = document.createElementNS("http://www.w3.org/2000/svg", "svg"), left = 0, height = 0;
    all("svg", figure).forEach(function (svg) {
      var copy = svg.cloneNode(true), box = svg.viewBox.baseVal;
      all("use", copy).forEach(function (use) {
        var layer = document.querySelector(use.getAttribute("href")).cloneNode(true);
        layer.removeAttribute("id");
        use.replaceWith(layer);
      });
      [["x", left], ["width", box.width], ["height", box.height]].forEach(function (pair) { copy.setAttribute(pair[0], pair[1]); });
      outer.append(copy);
      left += box.width;
      height = Math.max(height, box.height);
    });
    [["viewBox", "0 0 " + left + " " + height], ["width", left], ["height", height]].forEach(function (pair) {
      outer.setAttribute(pair[0], pair[1]);
    });
    var style = document.createElementNS("http://www.w3.org/2000/svg", "style");
    style.textContent = document.getElementById("figure-style").textContent;
    outer.prepend(style);
    return new XMLSerializer().serializeToString(outer);
  };
  all("figure").forEach(function (figure) {
    var button = make("button", "SVG", "save");
    button.type = "button";
    button.setAttribute("aria-label", "Save " + figure.dataset.name + " as SVG");
    button.addEventListener("click", function () {
      var anchor = make("a");
      anchor.download = figure.dataset.name.replace(/[^\w.-]+/g, "_") + ".svg";
      anchor.href = URL.createObjectURL(new Blob([alone(figure)], { type: "image/svg+xml" }));
      anchor.click();
      setTimeout(function () { URL.revokeObjectURL(anchor.href); }, 10000);
    });
    figure.querySelector("figcaption").append(button);
  });

  // What is below the window is drawn after the rest, section by section: the page opens fast, and is whole soon after.
  window.addEventListener("load", function () {
    var later = window.requestIdleCallback || setTimeout, sections = all("section");
    var next = function () {
      var section = sections.shift();
      if (!section) { return; }
      [section].concat(all(".plots > figure", section)).forEach(function (part) { part.style.contentVisibility = "visible"; });
      later(next, { timeout: 300 });
    };
    later(next, { timeout: 300 });
  });

  // Paper shows what is folded on the screen.
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (part) { part.open = true; });
  });
}());
