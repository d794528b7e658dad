// A CPU and a GPU at one matrix product, from small to large; and the reader's own CPU.
"use strict";
play.begin("race", (part, { sizes, speeds, names, source }) => {
  const { make } = play;
  const steps = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 150, 170, 200, 250, 300, 400, 500, 600, 800, 1000];
  const least = sizes[0], most = sizes[sizes.length - 1];

  // Seconds for a product: between two sizes along the picture's straight line, whose axes count in powers of ten.
  const time = (line) => (n) => {
    const at = Math.max(1, sizes.findIndex((size) => size >= n));
    const share = Math.log(n / sizes[at - 1]) / Math.log(sizes[at] / sizes[at - 1]);
    return (2 * n ** 3) / (line[at - 1] * (line[at] / line[at - 1]) ** share * 1e9);
  };
  // With both ends alone: a time to start, and a time for each calculation.
  const estimate = (low, high) => (n) => {
    const short = (2 * least ** 3) / (low * 1e9), long = (2 * most ** 3) / (high * 1e9);
    return short + ((long - short) * (n ** 3 - least ** 3)) / (most ** 3 - least ** 3);
  };
  const [cpu, gpu] = speeds.map(time);
  const crossing = (one) => {
    for (let n = least; n <= most; n += 1) if (gpu(n) < one(n)) return n;
    return null;
  };
  const round = (number) => Number(number.toPrecision(2)).toLocaleString("en");
  const compare = (name, one, n) => {
    const faster = one(n) < gpu(n), cross = crossing(one);
    return `${faster ? name : "The GPU"} is about ${round(faster ? gpu(n) / one(n) : one(n) / gpu(n))} times as fast` +
      ` as ${faster ? "the GPU" : name[0].toLowerCase() + name.slice(1)}. ` +
      (cross ? `From about ${round(cross)} rows on, the GPU wins.` : "Here the GPU never wins.");
  };

  const slider = play.slider("Rows and columns", 0, steps.length - 1, 0, () => show());
  const place = make("output", "race-place", "");
  const fields = [least, most].map((size) => {
    const field = play.input("number", { className: "race-field", min: 0, step: "any", oninput: () => show() });
    return [field, make("label", "", `at ${size.toLocaleString("en")} `, field)];
  });
  const own = "Your CPU";
  const bars = [...names, own].map((name) => play.bar(name));
  bars[1][0].classList.add("race-gpu");
  const says = play.says("race-says");

  const show = () => {
    const n = steps[slider.value];
    const [low, high] = fields.map(([field]) => Number(field.value));
    const racers = [cpu, gpu, ...(low > 0 && high > 0 ? [estimate(low, high)] : [])];
    const slowest = Math.max(...racers.map((one) => one(n)));
    place.textContent = slider.ariaValueText = n.toLocaleString("en");
    bars.forEach(([, set], at) => {
      const one = racers[at];
      set(one ? one(n) / slowest : 0, one ? `${round(one(n) * 1e6)} µs` : "");
    });
    says.textContent = compare("The CPU", cpu, n) + (racers[2] ? ` ${compare(own, racers[2], n)}` : "");
  };
  part.append(
    make("div", "play-row", "", "Rows and columns", slider, place),
    make("p", "race-title", "Time for one product: shorter is faster"),
    ...bars.map(([node]) => node), says,
    make("div", "play-row", "", "Your CPU, in billions of calculations a second:", ...fields.map(([, label]) => label)),
    make("p", "race-source", `${source}. Read off the picture above; your CPU's times between its ends are estimates.`));
  show();
});
