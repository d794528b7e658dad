// The memory of one training step: how much each thing takes, and how much is there at once at most.
"use strict";
play.begin("memory", (part, begin) => {
  const { make } = play;
  const block = (numbers) => Math.ceil((4 * numbers) / 512) * 512; // bytes: float32, in blocks of 512
  const state = { SGD: 0, "SGD with momentum": 1, Adam: 2 }; // in numbers for each number of the model

  const sizes = (width, layers, rows, optimizer) => {
    const linear = (inputs, outputs) => block(inputs * outputs) + block(outputs);
    const last = linear(width, begin.classes);
    const parameters = linear(begin.inputs, width) + (layers - 1) * linear(width, width) + last;
    const batch = block(rows * begin.inputs) + block(2 * rows); // a label takes eight bytes
    const relu = block(rows * width), scores = block(rows * begin.classes);
    const kept = { parameters, gradients: parameters, "optimizer state": state[optimizer] * parameters, batch };
    const always = 2 * parameters + kept["optimizer state"] + batch;
    // In the forward pass most is there when the last ReLU has made its result: its input is not gone yet, nor are the
    // gradients and the loss of the step before. In the backward pass it is at the same ReLU: then the gradients of
    // its result and of its input are there, and those of the last layer. Single numbers take a block each.
    const parts = {
      "in the forward pass": always + layers * relu + Math.max(relu, 2 * scores + 1024) + 512,
      "early in the backward pass": always - parameters + (layers + 2) * relu + last + 1024,
      "in the optimizer's step": always + (optimizer === "Adam" ? parameters : 0) + 512,
    };
    const [where, most] = Object.entries(parts).reduce((one, other) => (other[1] > one[1] ? other : one));
    return { kept: { ...kept, activations: layers * relu + scores + 1024 }, where, most };
  };

  const unit = (bytes) => bytes < 2 ** 30 ? `${(bytes / 2 ** 20).toFixed(2)} MiB` : `${(bytes / 2 ** 30).toFixed(2)} GiB`;
  const rows = [];
  const slider = (name, most, value, number) => {
    const words = make("output", "", "");
    const range = play.slider(name, number === Number ? 1 : 0, most, value, () => show());
    rows.push(make("div", "memory-row", "", make("span", "", name), range, words));
    return () => {
      const now = number(Number(range.value));
      words.textContent = range.ariaValueText = now.toLocaleString("en");
      return now;
    };
  };
  const power = (exponent) => 2 ** exponent;
  const width = slider("Width of a layer", 13, Math.log2(begin.width), power);
  const layers = slider("Layers", 32, begin.layers, Number);
  const batch = slider("Rows of the batch", 13, Math.log2(begin.rows), power);
  const optimizers = Object.keys(state);
  let optimizer = "Adam";
  const choice = play.choice("Optimizer", optimizers, (number) => {
    optimizer = optimizers[number];
    show();
  });
  choice.lastChild.value = optimizers.indexOf(optimizer);
  const names = Object.keys(sizes(1, 1, 1, optimizer).kept);
  const bars = names.map((name) => play.bar(name));
  const says = play.says("memory-says");

  const show = () => {
    const now = [width(), layers(), batch()];
    const { kept, where, most } = sizes(...now, optimizer);
    names.forEach((name, at) => bars[at][1](kept[name] / most, unit(kept[name])));
    const [wide, deep, many] = now;
    const half = sizes(wide, deep, many / 2, optimizer).most;
    says.textContent = `At most ${most.toLocaleString("en")} bytes are needed at once, ${unit(most)}: ${where}.` +
      (many > 1 ? ` With half the rows it would be ${unit(half)}.` : "");
  };
  part.append(...rows, choice, make("div", "memory-bars", "", ...bars.map(([node]) => node)), says);
  show();
});
