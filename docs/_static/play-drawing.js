// A sheet of 28 × 28 pixels to draw on, and the ten answers of the lesson's convolutional network.
"use strict";
play.begin("drawing", (part, { names, labels, file, size }, here) => {
  const { make, button } = play;
  const address = new URL(file, here);
  const pixels = new Uint8Array(784); // as in the data set: 0 is the ground, shown as white
  const sheet = Object.assign(make("canvas", "", ""), { width: 28, height: 28, tabIndex: 0 });
  sheet.setAttribute("role", "application");
  const keys = "Keys: arrows move the pen, space puts it down or lifts it.";
  sheet.ariaLabel = `Sheet. ${keys}`;
  const says = play.says("drawing-says");
  const bars = names.map((name) => play.bar(name));
  let weights, pictures, chosen = -1, source = "", action = "", waiting = false;
  let ink = 255, pen = [14.5, 14.5], isDown = false, last; // `last`: where a mouse or a finger was

  // A convolution with its pool and its relu. `input` has square pictures, one behind the other.
  const convolve = (input, side, weight, bias) => {
    const area = side ** 2, count = weight.length / bias.length;
    const output = new Float32Array(bias.length * area / 4); // zeros: relu leaves nothing smaller
    bias.forEach((start, made) => {
      const sums = new Float32Array(area).fill(start);
      for (let at = 0; at < count; at++) { // nine weights for each picture
        const factor = weight[made * count + at], from = Math.floor(at / 9) * area;
        const down = Math.floor(at % 9 / 3) - 1, across = at % 3 - 1;
        for (let y = Math.max(0, -down); y < Math.min(side, side - down); y++) {
          for (let x = Math.max(0, -across); x < Math.min(side, side - across); x++) {
            sums[y * side + x] += factor * input[from + (y + down) * side + x + across];
          }
        }
      }
      sums.forEach((sum, at) => {
        const pooled = made * area / 4 + (at / side >> 1) * side / 2 + (at % side >> 1);
        output[pooled] = Math.max(output[pooled], sum);
      });
    });
    return output;
  };

  // The ten probabilities for 784 bytes. The weights are in the order of the network's state_dict.
  play.answer = (picture) => {
    let used = 0;
    const take = (count) => weights.subarray(used, used += count);
    let values = Float32Array.from(picture, (pixel) => pixel / 255);
    values = convolve(values, 28, take(8 * 9), take(8));
    values = convolve(values, 14, take(16 * 8 * 9), take(16));
    const weight = take(10 * values.length);
    const scores = Array.from(take(10), (bias, row) =>
      values.reduce((sum, value, at) => sum + value * weight[row * values.length + at], bias));
    const powers = scores.map((score) => Math.exp(score - Math.max(...scores)));
    return powers.map((power) => power / powers.reduce((sum, each) => sum + each));
  };

  // Show the sheet and the answers, once a frame at most; say the answer after a stroke.
  const refresh = () => {
    if (!waiting) requestAnimationFrame(draw);
    waiting = true;
  };
  const draw = () => {
    waiting = false;
    const context = sheet.getContext("2d"), image = context.createImageData(28, 28);
    pixels.forEach((pixel, at) => image.data.fill(255 - pixel, 4 * at, 4 * at + 3).fill(255, 4 * at + 3));
    context.putImageData(image, 0, 0);
    context.fillStyle = "#d1530a";
    if (sheet.matches(":focus-visible")) context.fillRect(...pen.map(Math.floor), 1, 1);
    if (!weights) return;
    const shares = play.answer(pixels), best = shares.indexOf(Math.max(...shares));
    shares.forEach((share, at) => {
      bars[at][1](share, share < 0.005 ? "< 1 %" : `${Math.round(100 * share)} %`);
      bars[at][0].classList.toggle("best", at === best);
    });
    if (last) return;
    says.textContent = `${action} ${source} The network says: ${names[best]}, ${Math.round(100 * shares[best])} %.`;
  };

  // Draw a line: near the pen, pixels take on its ink.
  const line = ([x, y], [toX, toY]) => {
    const steps = Math.ceil(2 * Math.hypot(toX - x, toY - y)) || 1;
    for (let step = 1; step <= steps; step++) {
      const penX = x + (toX - x) * step / steps, penY = y + (toY - y) * step / steps;
      pixels.forEach((pixel, at) => {
        const away = Math.hypot(at % 28 + 0.5 - penX, Math.floor(at / 28) + 0.5 - penY);
        pixels[at] = pixel + (ink - pixel) * Math.max(0, Math.min(1, 2 - away));
      });
    }
    source = source.replace(/(\d):/, "$1, changed:");
    refresh();
  };
  sheet.onpointerdown = sheet.onpointermove = (event) => {
    if (event.buttons !== 1) return;
    sheet.setPointerCapture(event.pointerId);
    const place = [event.offsetX, event.offsetY].map((at) => at / sheet.clientWidth * 28);
    line(last ?? place, place);
    last = place;
  };
  sheet.onlostpointercapture = () => {
    last = undefined;
    refresh();
  };
  sheet.onkeydown = (event) => {
    const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1], " ": [0, 0] };
    const by = ways[event.key], before = pen;
    if (!by || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    if (event.key === " ") isDown = !isDown;
    action = isDown ? "Pen down." : "Pen up.";
    pen = pen.map((at, axis) => Math.max(0.5, Math.min(27.5, at + by[axis])));
    if (isDown) line(before, pen);
    refresh();
  };
  sheet.onfocus = sheet.onblur = () => {
    isDown = false;
    action = "";
    refresh();
  };

  const show = (by) => {
    chosen = (chosen + by + labels.length) % labels.length;
    pixels.set(pictures.subarray(784 * chosen, 784 * (chosen + 1)));
    source = `Test picture ${chosen + 1} of ${labels.length}: ${names[labels[chosen]]}.`;
    refresh();
  };
  const load = button(`Load the trained network (${size})`, () => {
    const script = Object.assign(make("script", "", ""), { src: address });
    script.onload = () => {
      [weights, pictures] = play.network.map((text) => Uint8Array.from(atob(text), (one) => one.charCodeAt(0)));
      weights = new Float32Array(weights.buffer);
      load.replaceWith(button("Previous", () => show(-1)), button("Next test picture", () => show(1)));
      sheet.focus();
      refresh();
    };
    script.onerror = () => says.textContent = "The network could not be loaded. Try again.";
    document.head.append(script);
  });
  const clear = button("Clear", () => {
    pixels.fill(0);
    source = "";
    refresh();
  });
  const inks = play.choice("Pen", ["dark", "grey", "rubber"], (number) => ink = [255, 128, 0][number]);
  part.append(make("div", "play-row", "", load), make("div", "drawing-stage", "",
    make("div", "", "", sheet, make("div", "play-row", "", inks, clear), make("p", "drawing-keys", keys)),
    make("div", "", "", says, ...bars.map(([bar]) => bar))));
  refresh();
});
