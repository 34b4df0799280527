// Functions without state: elements, formats, decodings, windowed lists, summaries,
// test sets, canvases. page.py puts page.js after them.
// Texts of the data only ever become text nodes.

const SHADES = 5; // steps ahead with a shade of their own

// ---- elements -------------------------------------------------------------------------------

const byId = (id) => document.getElementById(id);
const readBlock = (id) => JSON.parse(byId(id).textContent);

/** Make an element; children are elements or strings. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const headCells = (...texts) => texts.map((text) => make("th", { scope: "col" }, text));
const cells = (...texts) => texts.map((text) => make("td", {}, text));
const rowHead = (text) => make("th", { scope: "row" }, text);

function styled(element, style) {
  Object.assign(element.style, style);
  return element;
}

// ---- formats --------------------------------------------------------------------------------

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const count = (number) => grouped.format(number);
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const probability = (score) => (score === null ? "–" : percent(Math.exp(score)));
const twoDigits = (number) => number.toFixed(2).replace("-", "−");

function duration(ms) {
  const seconds = ms / 1000;
  if (ms >= 1000) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return `${ms.toFixed(ms < 100 ? 1 : 0)} ms`;
}

const quoted = (text) => (text === "<end>" ? "end of text" : `“${text.trim() || text}”`);

function clockTime(seconds) {
  const tenths = Math.round(seconds * 10);
  const [hours, minutes] = [Math.floor(tenths / 36000), Math.floor(tenths / 600) % 60];
  const rest = ((tenths % 600) / 10).toFixed(1).padStart(4, "0");
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/** Compare the baseline's figure with ours: "2.10x fewer", or "1.05x more" if ours is larger. */
function ratio(baseline, ours, smaller, larger) {
  if (!(baseline > 0 && ours > 0)) return "";
  return baseline >= ours ? `${(baseline / ours).toFixed(2)}x ${smaller}` : `${(ours / baseline).toFixed(2)}x ${larger}`;
}

// ---- decodings ------------------------------------------------------------------------------

/** Return whether the decoder rejected all drafts after the last token that a call kept. */
function rejectsDraft(nodes) {
  const last = nodes.filter((node) => node.kept).reduce((best, node) => (best && best.step > node.step ? best : node), null);
  return nodes.some((node) => node.step > 0 && !node.kept && (last === null || node.parent === last.id));
}

function kindOf(token, rejecting) {
  if (token.by !== "decoder") return token.by;
  return rejecting[token.call] ? "corrected" : "decoder";
}

const analysed = new WeakMap();

/**
 * Return a decoding with `ends` (ms after which each call is done), `nodes` of all calls, and
 * `tokens` with `kind` and `written`, the call after which the token is known (-1: before all).
 */
function analyse(decoding) {
  if (analysed.has(decoding)) return analysed.get(decoding);
  const [ends, nodes, first, rejecting] = [[], [], [], []];
  let clock = decoding.start_ms;
  decoding.calls.forEach((call, index) => {
    clock += call.drafting_ms + call.verification_ms;
    ends.push(clock);
    first.push(nodes.length);
    for (const [parent, text, step, score, kept, next] of call.nodes) {
      nodes.push({ id: nodes.length, call: index, parent, text, step, score, kept, next });
    }
    rejecting.push(rejectsDraft(nodes.slice(first[index])));
  });
  let written = -1;
  const tokens = decoding.tokens.map((token) => {
    written = token.call ?? written;
    return { ...token, written, kind: kindOf(token, rejecting) };
  });
  const result = { decoding, calls: decoding.calls, start: decoding.start_ms, ends, total: clock, nodes, first, tokens };
  analysed.set(decoding, result);
  return result;
}

const nodesOf = (decoding, call) => decoding.nodes.slice(decoding.first[call], decoding.first[call + 1]);
const textOf = (tokens) => tokens.filter((token) => !token.special).map((token) => token.text).join("");

/** Return the number of sorted values that are at most a limit. */
function atMost(values, limit, from = 0, to = values.length) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] <= limit) from = middle + 1;
    else to = middle;
  }
  return from;
}

/** Return the nodes of a call as a list of [depth, node], children after their parents. */
function inTreeOrder(nodes) {
  const ids = new Set(nodes.map((node) => node.id));
  const visit = (node, depth) => [
    [depth, node],
    ...nodes.filter((child) => child.parent === node.id).flatMap((child) => visit(child, depth + 1)),
  ];
  return nodes.filter((node) => !ids.has(node.parent)).flatMap((node) => visit(node, 0));
}

/** Add up the summaries of a test set; acceptance is weighted by the number of calls. */
function sum(summaries) {
  const total = { acceptance: [] };
  for (const name of ["words", "tokens", "calls", "encoder_ms", "drafting_ms", "verification_ms", "total_ms"]) {
    total[name] = summaries.reduce((value, summary) => value + summary[name], 0);
  }
  total.tokens_per_call = total.calls ? total.tokens / total.calls : 0;
  const steps = Math.max(0, ...new Set(summaries.map((summary) => summary.acceptance.length)));
  for (let step = 0; step < steps; step += 1) {
    const known = summaries.filter((summary) => step < summary.acceptance.length);
    const calls = known.reduce((value, summary) => value + summary.calls, 0);
    total.acceptance.push(known.reduce((value, summary) => value + summary.acceptance[step] * summary.calls, 0) / (calls || 1));
  }
  return total;
}

// ---- windowed lists -------------------------------------------------------------------------

/**
 * Show `size` items in `host`, of which only those on the screen are in the document.
 * `draw(index)` makes an element, `space()` an empty one. `covered()`: hidden pixels at the top.
 */
function windowedList(host, size, estimate, draw, space, covered) {
  const [heights, tops, shown] = [new Float64Array(size).fill(estimate), new Float64Array(size + 1), new Map()];
  const [above, below] = [space(), space()];
  host.replaceChildren(above, below);

  function place(first, last) {
    for (let index = 0; index < size; index += 1) tops[index + 1] = tops[index] + heights[index];
    above.style.height = `${tops[first]}px`;
    below.style.height = `${tops[size] - tops[last]}px`;
  }

  function show(first, last) {
    for (const [index, element] of shown) {
      if (index < first || index >= last) {
        element.remove();
        shown.delete(index);
      }
    }
    let next = above.nextSibling;
    for (let index = first; index < last; index += 1) {
      if (!shown.has(index)) {
        shown.set(index, draw(index));
        host.insertBefore(shown.get(index), next);
      } else next = shown.get(index).nextSibling;
    }
  }

  function measure() {
    let changed = false;
    for (const [index, element] of shown) {
      const height = element.getBoundingClientRect().height;
      changed ||= Math.abs(height - heights[index]) > 0.5;
      heights[index] = height;
    }
    return changed;
  }

  function update() {
    for (let round = 0; round < 4; round += 1) {
      const top = -host.getBoundingClientRect().top;
      const first = Math.max(0, atMost(tops, top - 300) - 1);
      const last = Math.min(size, atMost(tops, top + window.innerHeight + 300));
      show(Math.min(first, size), Math.max(first, last));
      const changed = measure();
      place(Math.min(first, size), Math.max(first, last));
      if (!changed) break;
    }
  }

  function reveal(index) {
    for (let round = 0; round < 2; round += 1) {
      const top = host.getBoundingClientRect().top + tops[index];
      const bottom = top + heights[index];
      const room = window.innerHeight - covered();
      if (top < covered() || heights[index] > room) window.scrollBy(0, top - covered());
      else if (bottom > window.innerHeight) window.scrollBy(0, bottom - window.innerHeight);
      update();
    }
  }

  function redraw(index) {
    if (!shown.has(index)) return;
    const element = draw(index);
    shown.get(index).replaceWith(element);
    shown.set(index, element);
    update();
  }

  place(0, 0);
  update();
  // Items that were not on the screen yet get the mean height of the first ones.
  const mean = [...shown.keys()].reduce((total, index) => total + heights[index], 0) / shown.size;
  for (let index = 0; index < size; index += 1) if (!shown.has(index)) heights[index] = mean;
  update();
  return { update, reveal, redraw, get: (index) => shown.get(index) };
}

// ---- summary --------------------------------------------------------------------------------

const PARTS = [["encoder_ms", "Encoder, other"], ["drafting_ms", "Drafting"], ["verification_ms", "Verification"]];

function summaryTable(summary, baseline, name) {
  const head = make("tr", {}, make("th"), ...headCells("Words", "Tokens", "Calls", "Tokens per call"));
  for (const [field, label] of PARTS) {
    head.append(make("th", { scope: "col" }, make("span", { class: `swatch ${field}` }), label));
  }
  head.append(...headCells("Total"));
  const row = (label, one) => make(
    "tr", {}, rowHead(label),
    ...cells(count(one.words), count(one.tokens), count(one.calls), one.tokens_per_call.toFixed(2)),
    ...cells(...PARTS.map(([field]) => duration(one[field])), duration(one.total_ms)),
  );
  const body = make("tbody", {}, row(name, summary));
  if (baseline) {
    const ratios = [
      "", "", ratio(baseline.calls, summary.calls, "fewer", "more"),
      ratio(summary.tokens_per_call, baseline.tokens_per_call, "more", "fewer"),
      "", "", ratio(baseline.verification_ms, summary.verification_ms, "less", "more"),
      ratio(baseline.total_ms, summary.total_ms, "faster", "slower"),
    ];
    body.append(row("Without drafts", baseline));
    body.append(make("tr", { class: "ratio" }, rowHead("Ratio"), ...cells(...ratios)));
  }
  return make("table", { class: "figures" }, make("thead", {}, head), body);
}

function timeBars(summary, baseline) {
  const most = Math.max(summary.total_ms, baseline ? baseline.total_ms : 0) || 1;
  const part = (name, ms) => styled(make("span", { class: name }), { width: `${(100 * ms) / most}%` });
  const bar = (one) => {
    const rest = PARTS.reduce((left, [field]) => left - one[field], one.total_ms);
    const parts = PARTS.map(([field]) => part(field, one[field]));
    return make("div", { class: "stack", "aria-hidden": "true" }, ...parts, part("rest", Math.max(0, rest)));
  };
  return make("div", { class: "stacks" }, bar(summary), ...(baseline ? [bar(baseline)] : []));
}

function acceptanceBars(acceptance, note) {
  const rows = acceptance.map((share, step) => {
    const fill = styled(make("span", { class: "fill" }), { width: `${100 * share}%` });
    const track = make("span", { class: "track" }, fill);
    return make("li", {}, make("span", {}, `${step + 1}`), track, make("span", { class: "share" }, percent(share)));
  });
  return make(
    "div", { class: "acceptance" }, make("h2", {}, "Acceptance by tokens ahead"),
    make("ol", {}, ...rows), make("p", { class: "note" }, note),
  );
}

// ---- test sets -------------------------------------------------------------------------------

const rateText = (rate) => `${(100 * rate).toFixed(1)} %`;
const wer = ({ wer: errors }) => (errors && errors.words ? errors.errors / errors.words : null);

const collator = new Intl.Collator("en", { numeric: true });

/** Return the indices of entries that contain the filter, sorted; missing values come last. */
function sortedEntries(entries, value, descending, filter) {
  const wanted = filter.trim().toLowerCase();
  const contains = (entry) => `${entry.id}\n${entry.text}`.toLowerCase().includes(wanted);
  const found = entries.flatMap((entry, index) => (contains(entry) ? [index] : []));
  if (!value) return found;
  const values = entries.map(value);
  const sign = descending ? -1 : 1;
  return found.sort((one, other) => {
    const [left, right] = [values[one] ?? null, values[other] ?? null];
    if (left === null || right === null) return (left === null) - (right === null) || one - other;
    return sign * (typeof left === "string" ? collator.compare(left, right) : left - right) || one - other;
  });
}

/** Return the line under the title of a test set: size, failures, search, WER of all words. */
function aboutSet({ utterances, search }) {
  const failed = utterances.filter((entry) => entry.error).length;
  const scored = utterances.filter((entry) => entry.wer).map((entry) => entry.wer);
  const [errors, words] = ["errors", "words"].map((name) => scored.reduce((total, one) => total + one[name], 0));
  return [
    plural(utterances.length, "utterance"), ...(failed ? [`${count(failed)} failed`] : []), `${search} search`,
    ...(words ? [`WER ${rateText(errors / words)} of ${plural(words, "word")}`] : []),
  ].join(", ");
}

/** Return texts and elements of an alignment, with at most `most` errors. */
function alignmentParts(alignment, most) {
  const parts = [];
  let [same, errors] = ["", 0];
  for (const { op, reference, hypothesis } of alignment) {
    if (op === "=") same += `${hypothesis} `;
    else if ((errors += 1) <= most) {
      parts.push(same, make("span", { class: op === "S" ? "substitution" : null }, ...[
        op === "I" ? null : make("del", { title: op === "S" ? "reference of a substitution" : "deletion" }, reference),
        op === "S" ? " " : null,
        op === "D" ? null : make("ins", { title: op === "S" ? "substitution" : "insertion" }, hypothesis),
      ].filter((part) => part !== null)), " ");
      same = "";
    } else {
      return [...parts, same, "…"];
    }
  }
  return [...parts, same];
}

// ---- canvases --------------------------------------------------------------------------------

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);

/** Fit a canvas to its size on the screen; return its context, width and height in CSS pixels. */
function contextOf(canvas) {
  const [width, height, scale] = [canvas.clientWidth, canvas.clientHeight, window.devicePixelRatio || 1];
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

/** Draw the calls of a lane along the time axis: drafting, then verification. */
function drawStrip(canvas, lane, most, clock) {
  const [context, width, height] = contextOf(canvas);
  const [late, drafting, verification] = ["track", "drafting", "verification"].map(color);
  const block = (from, to, fill) => {
    context.fillStyle = fill;
    context.fillRect((from / most) * width, 0, Math.max(0.5, ((to - from) / most) * width - 1), height);
  };
  lane.calls.forEach((call, index) => {
    const end = lane.ends[index];
    const middle = end - call.verification_ms;
    block(middle - call.drafting_ms, middle, end <= clock ? drafting : late);
    block(middle, end, end <= clock ? verification : late);
  });
  context.fillStyle = color("text");
  context.fillRect(Math.min(width - 2, (clock / most) * width), 0, 2, height);
}
