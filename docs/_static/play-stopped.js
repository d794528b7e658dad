// A run that is stopped, and goes on with what had been saved.
"use strict";
play.begin("stopped", (part, { whole, after, parts, lines }) => {
  const { make } = play;
  const stops = Object.keys(after).map(Number), last = whole.length;
  const boxes = parts.map(() => play.input("checkbox", { onchange: () => show() }));
  const ticks = parts.map((name, at) => make("label", "stopped-tick", "", boxes[at], make("code", "", name)));
  const all = play.button("Tick all", () => {
    boxes.forEach((box) => { box.checked = true; });
    show();
  });
  const slider = play.slider("Stop the run", 0, stops.length - 1, stops.length - 1, () => show());
  const place = make("span", "stopped-place", "");
  const chart = make("div", "stopped-chart", "");
  const says = play.says("stopped-says");
  const code = make("pre", "stopped-code", "");
  code.tabIndex = 0;

  const top = Math.max(...whole, ...Object.values(after).flat(2));
  const x = (epoch) => 10 + 31 * epoch, y = (loss) => 165 - (140 * loss) / top;
  const line = (losses, first, kind, radius) => {
    const at = losses.map((loss, n) => [x(first + n), y(loss)]);
    const dots = at.map(([cx, cy]) => `<circle cx="${cx}" cy="${cy}" r="${radius}"/>`).join("");
    return `<g class="stopped-${kind}"><polyline points="${at.join(" ")}"/>${dots}</g>`;
  };
  const text = (words, left, low) => `<text x="${left}" y="${low}">${words}</text>`;

  const show = () => {
    const stop = stops[slider.value];
    const choice = boxes.reduce((sum, box, at) => sum + (box.checked ? 2 ** at : 0), 0);
    const losses = after[stop][choice], usual = whole.slice(stop, stop + losses.length);
    const off = losses.map((loss, at) => Math.abs(loss - usual[at]));
    const most = Math.max(...off), same = off.findIndex((each) => each > 0);
    const begins = boxes[parts.indexOf("epoch")].checked ? "" :
      ` The script counts from epoch 1 again, so it would train ${stop} epochs too many.`;
    place.textContent = slider.ariaValueText = `after epoch ${stop}`;
    says.textContent = (same < 0
      ? "The same: each loss after the stop is that of the run without a stop, to the last bit."
      : same > 0
        ? `Epoch ${stop + same} is the same to the last bit. Then the loss differs, by ${most.toPrecision(2)} at most.`
        : `In epoch ${stop + 1} the loss is ${losses[0].toFixed(3)}; without a stop it is ${usual[0].toFixed(3)}. ` +
          `The largest difference is ${most.toPrecision(2)}, in epoch ${stop + 1 + off.indexOf(most)}.`) + begins;
    const label = `Loss by epoch, stopped after epoch ${stop}`;
    chart.innerHTML = `<svg viewBox="0 0 340 195" role="img" aria-label="${label}"><path d="M25 20V165H330"/>` +
      `<path class="stopped-break" d="M${x(stop + 0.5)} 20V165"/>` +
      line(whole, 1, "whole", 3) + line(losses, stop + 1, "on", 5) + text(`loss ${top.toFixed(1)}`, 0, 12) + text("0", 12, 169) +
      text("epoch 1", x(1) - 8, 182) + text(last, x(last) - 6, 182) + text("stop", x(stop + 0.5) - 10, 182) + "</svg>";
    const on = lines.filter(([, name]) => !parts.includes(name) || boxes[parts.indexOf(name)].checked);
    code.textContent = on.map(([text]) => text).join("\n");
  };
  const key = make("p", "stopped-key", "", make("i", "whole", ""), "without a stop ", make("i", "on", ""), "after the stop");
  part.append(
    make("div", "play-row", "", "Stop", slider, place),
    make("div", "play-row", "", "Saved with the weights:", ...ticks, all),
    says, make("div", "stopped-stage", "", make("div", "", "", key, chart), code));
  show();
});
