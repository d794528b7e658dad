// Trains the network of lesson 3, one of its five calls after another.
"use strict";
play.begin("learning", (part, data) => {
  const { start, flowers, labels, species, rates, rate, steps } = data;
  const { make, button } = play, count = flowers.length;
  // In `numbers`, the weights of each sum and then its bias; 1 goes in with the bias.
  const sums = [8, 9, 3], begins = [0, 40, 121];
  let numbers, gradients, outputs, loss, at, said, losses = [], before = [], chosen = rates[rate], timer = 0;

  // Send a flower through the network: what goes into each layer, and at last the scores.
  const forward = (flower) => {
    const values = [[...flower, 1]];
    let next = 0;
    sums.forEach((many, layer) => {
      const results = [];
      for (let row = 0; row < many; row++) {
        let sum = 0;
        for (const input of values[layer]) sum += numbers[next++] * input;
        results.push(layer < 2 ? Math.max(sum, 0) : sum); // ReLU, but not for the scores
      }
      values.push(layer < 2 ? [...results, 1] : results);
    });
    return values;
  };
  // The logarithm of the sum of all powers of e; the loss is this, less the score of the right class.
  const level = (scores) => {
    const most = Math.max(...scores);
    return most + Math.log(scores.reduce((sum, score) => sum + Math.exp(score - most), 0));
  };
  // From the loss back to the first layer, add what each flower gives to the gradients.
  const backward = () => outputs.forEach((values, flower) => {
    const log = level(values[3]);
    let slopes = values[3].map((score, kind) => (Math.exp(score - log) - (kind === labels[flower])) / count);
    for (let layer = 2; layer >= 0; layer--) {
      const inputs = values[layer], back = inputs.map(() => 0);
      let next = begins[layer];
      for (const slope of slopes.slice(0, sums[layer])) { // without that of the 1
        inputs.forEach((input, i) => {
          back[i] += slope * numbers[next];
          gradients[next++] += slope * input;
        });
      }
      slopes = back.map((slope, i) => (inputs[i] > 0 ? slope : 0)); // ReLU gave 0, whatever went in
    }
  });
  const answer = (scores) => scores.indexOf(Math.max(...scores));
  const right = () => outputs.filter((values, flower) => answer(values[3]) === labels[flower]).length;
  const acts = [
    () => {
      outputs = flowers.map(forward);
      said = `three scores for each flower. ${right()} of ${count} are right.`;
    },
    () => {
      loss = outputs.reduce((sum, { 3: scores }, n) => sum + level(scores) - scores[labels[n]], 0) / count;
      said = `the loss is ${loss.toFixed(4)}.`;
    },
    () => {
      if (!without.checked) gradients.fill(0);
      said = without.checked ? "left out, so the old gradients stay." : "the old gradients are forgotten.";
    },
    () => {
      backward();
      const ends = [Math.min(...gradients), Math.max(...gradients)].map((slope) => Number(slope.toFixed(3)));
      said = `the gradients are now between ${ends.join(" and ")}.`;
    },
    () => {
      numbers = numbers.map((number, i) => number - chosen * gradients[i]);
      losses.push(loss);
    },
  ];
  const call = () => {
    acts[at]();
    at = (at + 1) % 5;
  };

  // The pictures: the answers in 100 by 80 squares, and the losses. What stays in them comes with the data.
  const petals = Array.from({ length: 8000 }, (_, n) =>
    [...data.sepals, 0.5 + (n % 100 + 0.5) * 0.067, 2.7 - (Math.floor(n / 100) + 0.5) * 0.03375]);
  const picture = (name, title, drawing) => {
    const box = make("div", name, "", make("p", "", title));
    box.insertAdjacentHTML("beforeend", drawing);
    box.lastChild.ariaLabel = title;
    return [box, (names) => [...box.querySelectorAll(names)]];
  };
  const [map, inMap] = picture("learning-map", "What the network answers for each petal", data.map);
  map.append(make("p", "", "", ...species.map((name, kind) =>
    make("b", `kind-${kind}`, `${"●■▲"[kind]} ${name}`))));
  const [curve, inCurve] = picture("learning-loss", "The loss of each step (dashed: the run before)", data.curve);
  const draw = () => {
    const found = petals.map((petal) => answer(forward(petal)[3]));
    const fills = ["", "", ""], places = fills.map(() => [0, 0, 0, 0]);
    let border = "", start = 0;
    found.forEach((kind, n) => {
      const x = n % 100, y = (n - x) / 100;
      if (x === 99 || found[n + 1] !== kind) {
        fills[kind] += `M${start} ${y}H${x + 1}v1H${start}z`;
        start = (x + 1) % 100;
        border += start ? `M${start} ${y}v1` : "";
      }
      if (y < 79 && found[n + 100] !== kind) border += `M${x} ${y + 1}h1`;
      const share = x + 1.25 * y < 85 ? 1 : 1e-6; // names go above the flowers, if there is room
      [share, share * x, share * y, 1].forEach((one, i) => places[kind][i] += one);
    });
    inMap(".region").forEach((path, kind) => path.setAttribute("d", fills[kind]));
    inMap(".line")[0].setAttribute("d", border);
    inMap(".name").forEach((name, kind) => {
      const [all, x, y, many] = places[kind];
      name.setAttribute("x", many > 300 ? 40 + 3 * x / all : -99); // outside, if it has no room
      name.setAttribute("y", many > 300 ? 12 + 3 * y / all : 0);
    });
    const end = Math.max(steps, losses.length, before.length);
    [losses, before].forEach((values, which) => {
      const points = values.map((loss, n) => `${40 + 300 * n / end} ${118 - 55 * (loss < 2 ? loss : 2)}`);
      inCurve(".losses")[which].setAttribute("d", points.length ? `M${points.join("L")}` : "");
    });
    inCurve("text").pop().textContent = `step ${end}`;
  };

  const lines = data.calls.map(([code, why]) =>
    make("li", "", "", make("code", "", code), make("span", "", why)));
  const says = play.says("learning-says");
  // A screen reader says what was done, but not what passes by.
  const show = () => {
    says.setAttribute("aria-live", timer ? "off" : "polite");
    const last = losses.length ? `Step ${losses.length}: loss ${loss.toFixed(4)}, ${right()} of ${count} right.` : "";
    says.textContent = at ? `Call ${at}: ${said}` : last || "The network is untrained.";
    lines.forEach((line, n) => line.classList.toggle("now", n === at - 1 || n === 4 && !at && last !== ""));
    lines[2].classList.toggle("out", without.checked);
    run.textContent = timer ? "Stop" : "Run";
    if (!at) draw();
  };
  const halt = () => {
    while (timer && at) call(); // a step that was begun
    timer = clearInterval(timer);
  };
  const go = (pause, many, done) => {
    const tick = () => {
      for (let n = 0; n < many && timer; n++) {
        call();
        if (!at && done()) halt();
      }
      show();
    };
    halt();
    timer = setInterval(tick, pause);
    tick();
  };
  const finish = (many) => {
    halt();
    for (let n = 0; n < many; n++) do call(); while (at);
    show();
  };
  const begin = () => {
    halt();
    if (losses.length) before = losses;
    numbers = start;
    gradients = numbers.map(() => 0);
    losses = [];
    at = 0;
    show();
  };
  const one = button("One call", () => {
    halt();
    call();
    show();
  });
  const step = button("One step", () => (play.calm ? finish(1) : go(400, 1, () => true)));
  const run = button("Run", () => {
    const runs = timer;
    halt();
    finish(at ? 1 : 0);
    if (!runs) go(play.calm ? 500 : 30, play.calm ? 500 : 15, () => losses.length % steps === 0);
  });
  const without = play.input("checkbox", { onchange: begin });
  const choice = play.choice("Learning rate", rates, (number) => {
    chosen = rates[number];
    begin();
  });
  choice.lastChild.value = rate;
  part.append(
    make("div", "play-row", "", one, step, button("Ten steps", () => finish(10)), run, button("Begin again", begin)),
    make("div", "play-row", "", choice, make("label", "", "", without, " without ", make("code", "", "zero_grad"))),
    says, make("div", "learning-stage", "", make("ol", "", "", ...lines), map, curve));
  begin();
});
