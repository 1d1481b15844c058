// Tables: a click on a column's header, or Enter on it, sorts by it; a third one undoes that.
for (const table of document.querySelectorAll("main table")) {
  const heads = [...table.querySelectorAll("thead th")];
  const body = table.tBodies[0];
  const original = body ? [...body.rows] : [];
  if (original.length < 2) continue;

  const text = (row, column) =>
    row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
  const number = (words) => {
    const found = words.replaceAll("−", "-").replaceAll(",", "").match(/^[+-]?\d+(\.\d+)?(e[+-]?\d+)?/);
    return found ? Number(found[0]) : NaN;
  };
  const absent = (words) => words === "" || words === "–";
  const compare = (column) => {
    const known = original.map((row) => text(row, column)).filter((words) => !absent(words));
    const numeric = known.every((words) => !Number.isNaN(number(words)));
    return numeric
      ? (a, b) => number(a) - number(b)
      : (a, b) => a.localeCompare(b, "en", { numeric: true });
  };

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const next = { null: "ascending", ascending: "descending", descending: null }[now];
      for (const other of heads) other.removeAttribute("aria-sort");
      let rows = original;
      if (next) {
        head.setAttribute("aria-sort", next);
        const by = compare(column);
        const sign = next === "ascending" ? 1 : -1;
        rows = [...original].sort((a, b) => {
          const [x, y] = [text(a, column), text(b, column)];
          // what is missing stays last, whichever way
          return absent(x) - absent(y) || (absent(x) ? 0 : sign * by(x, y));
        });
      }
      body.append(...rows);
    });
  });
  table.classList.add("sortable");
}
