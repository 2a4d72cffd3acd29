// Tables of words and numbers: a click on a heading sorts by its column.

/** @param {HTMLTableElement} table */
export function sortable(table) {
  const [head, ...rows] = [...table.rows];
  if (rows.length < 2) return;
  let [sorted, falling] = [-1, false];
  [...head.cells].forEach((cell, column) => {
    const sort = () => {
      falling = sorted === column ? !falling : column > 0;
      sorted = column;
      const value = (row) => {
        const text = (row.cells[column]?.textContent ?? "").trim();
        const number = parseFloat(text.replaceAll(",", "").replace("−", "-"));
        return { text, number };
      };
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        const [first, second] = [Number.isNaN(x.number), Number.isNaN(y.number)];
        if (first !== second) return first ? 1 : -1;  // what has no number stays at the end
        return (falling ? -1 : 1) * (first ? x.text.localeCompare(y.text) : x.number - y.number);
      };
      head.after(...rows.slice().sort(compare));
      [...head.cells].forEach((other, i) => other.setAttribute("aria-sort", i === column ? (falling ? "descending" : "ascending") : "none"));
    };
    cell.setAttribute("aria-sort", "none");
    cell.classList.add("wf-sort");
    cell.tabIndex = 0;
    cell.title = "sort by this column";
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort();
    });
  });
}
