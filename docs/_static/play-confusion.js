// The confusion matrix with a button on each square: it shows pictures that the square counts.
"use strict";
play.begin("confusion", (part, { file, most }, here) => {
  const { make, button } = play;
  const address = new URL(file, here);
  const table = part.querySelector("table").cloneNode(true);
  const names = [...table.tHead.querySelectorAll("th")].map((head) => head.textContent);
  const says = play.says("confusion-says", "Choose a number, and see its pictures.");
  const pictures = make("div", "confusion-pictures", "");

  const squares = [...table.querySelectorAll("td[class]")].map((cell, row) => { // `row`: of pictures
    const count = Number(cell.textContent);
    const truth = cell.parentNode.cells[0].textContent, answer = names[cell.cellIndex - 1];
    const what = `${count} × ${truth} ${truth === answer ? "answered right" : `taken for ${answer}`}`;
    const square = button(`${count}`, () => {
      for (const each of squares) each.ariaPressed = each === square;
      says.textContent = `${what}.${count > most ? ` The first ${most}:` : ""}`;
      pictures.replaceChildren(...Array.from({ length: Math.min(count, most) }, (_, column) => {
        const picture = make("span", "", "");
        picture.style.backgroundImage = `url("${address}")`;
        picture.style.backgroundPosition = `${-56 * column}px ${-56 * row}px`;
        return picture;
      }));
    });
    cell.replaceChildren(square);
    return Object.assign(square, { ariaLabel: what, ariaPressed: false, tabIndex: row ? -1 : 0 });
  });
  // Tab leads to one square, and arrow keys to the others.
  table.addEventListener("focusin", ({ target }) => {
    for (const each of squares) each.tabIndex = each === target ? 0 : -1;
  });
  table.onkeydown = (event) => {
    const at = squares.indexOf(event.target), column = (square) => square.parentNode.cellIndex;
    const inColumn = (square) => column(square) === column(event.target);
    const next = {
      ArrowRight: squares[at + 1],
      ArrowLeft: squares[at - 1],
      ArrowDown: squares.slice(at + 1).find(inColumn),
      ArrowUp: squares.slice(0, at).reverse().find(inColumn),
    }[event.key];
    if (!next || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    next.focus();
  };
  part.append(make("div", "confusion", "", table, make("div", "", "", says, pictures)));
});
