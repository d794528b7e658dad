// Moves the point of a linear layer along a machine's roof, by the size of its batch.
"use strict";
play.begin("roofline", (part, { machines, side, largest }) => {
  const { make } = play;
  const draw = (name, attributes, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return node;
  };
  // both axes are logarithmic: from 0.3 to 3000 FLOP per byte, and four powers of ten up to the roof
  const across = (intensity) => 40 + 73 * Math.log10(intensity / 0.3);
  const up = (rate) => 16 + 42 * Math.log10(now.flop / rate);
  const intensity = (batch) => 2 * batch * side / (now.size * (side + 2 * batch));
  const reach = (at) => Math.min(at * now.bytes, now.flop);
  const rate = (flops) => {
    const [name, unit] = [["T", 1e12], ["G", 1e9]].find(([, each]) => flops >= each) ?? ["M", 1e6];
    return `${Number((flops / unit).toPrecision(3))} ${name}FLOP/s`;
  };
  const time = (seconds) => {
    const [name, unit] = [["s", 1], ["ms", 1e-3]].find(([, each]) => seconds >= each) ?? ["µs", 1e-6];
    return `${Number((seconds / unit).toPrecision(3))} ${name}`;
  };

  let now = machines[0];
  const picture = draw("svg", { viewBox: "0 0 340 224", "aria-hidden": "true" });
  const says = play.says("roofline-says");
  const place = make("span", "roofline-place", "");
  const slider = play.slider("Batch size, as a power of two", 0, largest, 0, () => show());
  const choice = play.choice("Machine", machines.map((each) => each.name), (number) => {
    now = machines[number];
    show();
  });

  const show = () => {
    const batch = 2 ** slider.value, at = intensity(batch), ridge = now.flop / now.bytes;
    const flop = 2 * batch * side * side, most = reach(at), share = most / now.flop;
    slider.setAttribute("aria-valuetext", `batch ${batch}`);
    place.textContent = `Batch ${batch.toLocaleString("en")}`;
    const x = across(at), y = up(most);
    picture.replaceChildren(
      draw("path", { class: "axes", d: "M40 10V192H336" }),
      draw("path", { class: "ridge", d: `M${across(ridge)} 16V192` }),
      draw("path", { class: "roof", d: `M40 ${up(reach(0.3))}L${across(ridge)} 16H332` }),
      ...[1, 10, 100, 1000].map((each) => draw("text", { x: across(each), y: 206 }, `${each}`)),
      draw("text", { x: 188, y: 221 }, "FLOP per byte"),
      draw("text", { x: -104, y: 12, transform: "rotate(-90)" }, "FLOP a second"),
      draw("text", { class: "start", x: across(ridge) + 4, y: 186 }, `ridge ${Number(ridge.toPrecision(2))}`),
      draw("text", { class: "end", x: 332, y: 9 }, rate(now.flop)),
      ...now.measured.map(([size, flops]) =>
        draw("circle", { class: "measured", cx: across(intensity(size)), cy: up(flops), r: 4 })),
      draw("path", { class: "drop", d: `M${x} ${y}V192` }),
      draw("circle", { class: "point", cx: x, cy: y, r: 7 }));
    const found = now.measured.find(([size]) => size === batch);
    says.textContent = `${Number(at.toPrecision(3))} FLOP per byte. `
      + `The limit is ${at < ridge ? "memory" : "arithmetic"}: the layer takes at least ${time(flop / most)}, `
      + `with at most ${rate(most)}, which is ${Number((100 * share).toPrecision(2))} % of the arithmetic.`
      + (found ? ` Measured: ${rate(found[1])}.` : "");
  };
  part.append(make("div", "play-row", "", choice), make("div", "play-row", "", place, slider), picture, says);
  show();
});
