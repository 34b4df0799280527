// The page: tables, player, text, replay and decoder calls, drawn from the JSON blocks.

const KINDS = {
  draft: "verified draft",
  corrected: "decoder’s own token after a rejected draft",
  decoder: "decoder’s own token, no draft rejected",
  unverified: "unverified",
};
// Measures of an attempt: field, label, and whether a value is beyond its threshold.
const MEASURES = [
  ["compression_ratio", "compression", (value, most) => value > most],
  ["average_log_probability", "mean log-probability", (value, least) => value < least],
  ["no_speech_probability", "no speech", (value, most) => value > most],
];

// ---- the one object with state --------------------------------------------------------------

const view = {
  overview: readBlock("page"),
  table: { order: [], key: null, descending: false, active: -1, scroll: 0, list: null },
  opened: null, // the utterance on the screen: data, passage, attempts, call, clock, words, ...
  running: null, // the replay's animation: request, time
};
const { overview } = view;
const draftsName = overview.drafter ? `With drafts (${overview.drafter})` : "Without drafts";
const indices = new Map([...overview.utterances].map((entry, index) => [entry.id, index]).reverse());
const stickyHeight = () => (byId("player").hidden || byId("utterance").hidden ? 36 : byId("player").offsetHeight + 4);

function drawSummary(summary, baseline, note) {
  const host = byId("summary");
  host.replaceChildren();
  if (!summary) return;
  const table = summaryTable(summary, baseline, draftsName);
  host.append(make("div", { class: "amounts" }, table, timeBars(summary, baseline)));
  if (summary.acceptance.length) host.append(acceptanceBars(summary.acceptance, note));
}

// ---- table of utterances --------------------------------------------------------------------

const figure = (name) => (entry) => (entry.summary ? entry.summary[name] : null);
const tenths = new Intl.NumberFormat("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const milliseconds = (ms) => (ms < 10000 ? tenths.format(ms) : count(ms));
const COLUMNS = [
  ["Id", (entry) => entry.id, (id) => id],
  ["Audio (s)", (entry) => entry.seconds, (seconds) => seconds.toFixed(1)],
  ["WER", wer, rateText],
  ["Tokens per call", figure("tokens_per_call"), (tokens) => tokens.toFixed(2)],
  ["Total (ms)", figure("total_ms"), milliseconds],
];
function drawRow(row) {
  const entry = overview.utterances[view.table.order[row]];
  const figures = COLUMNS.map(([, value, format]) => {
    const found = value(entry) ?? null;
    return found === null ? "–" : format(found);
  });
  const link = make("a", { href: hashOf(entry.id), tabindex: -1 }, figures[0]);
  const text = entry.error
    ? make("td", { class: "error" }, `failed: ${entry.error}`)
    : make("td", { class: "text", dir: "auto" }, entry.text);
  const active = row === view.table.active;
  const tabindex = active || (view.table.active < 0 && row === 0) ? 0 : -1;
  const attributes = { "data-row": row, "aria-rowindex": row + 2, tabindex, class: active ? "active" : null };
  return make("tr", attributes, rowHead(link), ...cells(...figures.slice(1)), text);
}

function drawHeaders() {
  const { key, descending } = view.table;
  const sorted = (column) => (column === key ? (descending ? "descending" : "ascending") : "none");
  const arrow = { ascending: "▲", descending: "▼", none: "" };
  const headers = COLUMNS.map(([label], column) => {
    const mark = make("span", { "aria-hidden": "true" }, arrow[sorted(column)]);
    const button = make("button", { type: "button", "data-column": column }, label, mark);
    return make("th", { scope: "col", "aria-sort": sorted(column) }, button);
  });
  byId("headers").replaceChildren(...headers, ...headCells("Text"));
}

function drawTable() {
  const { table } = view;
  const value = table.key === null ? null : COLUMNS[table.key][1];
  table.order = sortedEntries(overview.utterances, value, table.descending, byId("filter").value);
  byId("count").textContent = `${count(table.order.length)} of ${plural(overview.utterances.length, "utterance")}`;
  byId("table").setAttribute("aria-rowcount", table.order.length + 1);
  const space = () => make("tr", { "aria-hidden": "true", class: "space" }, make("td"));
  table.list = windowedList(byId("rows"), table.order.length, 34, drawRow, space, stickyHeight);
}

/** Draw the table after a change of order or filter, from its first row. */
function redrawTable() {
  view.table.active = -1;
  drawTable();
  if (byId("rows").getBoundingClientRect().top < stickyHeight()) view.table.list.reveal(0);
}

function sortBy(column) {
  const { table } = view;
  table.descending = table.key === column && !table.descending;
  table.key = column;
  drawHeaders();
  byId("headers").children[column].firstChild.focus();
  redrawTable();
}

function activate(row) {
  const { table } = view;
  if (!table.order.length) return;
  const before = table.active;
  table.active = Math.max(0, Math.min(table.order.length - 1, row));
  table.list.reveal(table.active);
  for (const index of [before, table.active]) table.list.redraw(index);
  table.list.get(table.active)?.focus({ preventScroll: true });
}

// ---- routes ---------------------------------------------------------------------------------

const hashOf = (id) => `#${encodeURIComponent(id)}`;

function idOfHash(hash) {
  try {
    return decodeURIComponent(hash.slice(1));
  } catch {
    return hash.slice(1);
  }
}

function route() {
  const wanted = indices.get(idOfHash(location.hash));
  if (wanted !== undefined) open(wanted);
  else if (overview.utterances.length === 1) open(0);
  else showList();
}

function leave() {
  if (overview.utterances.length > 1 && view.opened) location.hash = "";
}

function showList() {
  close();
  for (const id of ["back", "utterance"]) byId(id).hidden = true;
  byId("list").hidden = false;
  byId("title").textContent = document.title = overview.title;
  byId("about").textContent = aboutSet(overview);
  const known = overview.utterances.filter((entry) => entry.summary);
  const compared = known.every((entry) => entry.baseline) && known.length;
  const total = (field) => sum(known.map((entry) => entry[field]));
  const note = "Mean of utterances, weighted by calls";
  drawSummary(known.length ? total("summary") : null, compared ? total("baseline") : null, note);
  drawHeaders();
  drawTable();
  window.scrollTo(0, view.table.scroll);
  view.table.list.update();
  if (view.table.active >= 0) view.table.list.get(view.table.active)?.focus({ preventScroll: true });
}

// ---- one utterance --------------------------------------------------------------------------

function open(index) {
  if (view.opened === null && !byId("list").hidden) view.table.scroll = window.scrollY;
  close();
  const [entry, data] = [overview.utterances[index], readBlock(`utterance-${index}`)];
  const { audio, passages } = data;
  view.opened = {
    entry, data, passages, passage: 0, call: 0, clock: 0, word: -1, list: null, order: [],
    attempts: passages.map(({ attempts }) => Math.max(0, attempts.findIndex((attempt) => attempt.chosen))),
    words: passages.flatMap(({ words }, passage) => words.map((word, number) => ({ ...word, passage, number }))),
  };
  view.opened.starts = view.opened.words.map((word) => word.start_s);
  byId("list").hidden = true;
  byId("utterance").hidden = false;
  byId("back").hidden = overview.utterances.length === 1;
  byId("title").textContent = entry.id;
  document.title = entry.id === overview.title ? entry.id : `${entry.id} – ${overview.title}`;
  byId("about").textContent = `${clockTime(entry.seconds)} of audio, ${overview.search} search`;
  byId("failure").hidden = !entry.error;
  byId("failure").textContent = entry.error ? `Decoding failed: ${entry.error}` : "";
  drawSummary(entry.summary, entry.baseline, "Share of drafts that were accepted");
  byId("player").hidden = !audio;
  if (audio) byId("audio").src = addressOf(audio.src);
  byId("errors").open = data.alignment !== null && data.alignment.length <= 300;
  drawErrors();
  byId("passage-bar").hidden = passages.length < 2;
  byId("find").value = "";
  byId("utterance").querySelector(".columns").hidden = passages.length === 0;
  window.scrollTo(0, 0);
  drawPassages();
  select(0);
  drawPosition();
}

function close() {
  if (view.running) toggleReplay();
  view.opened = null;
  byId("audio").pause();
  byId("audio").removeAttribute("src");
  byId("passages").replaceChildren();
}

// ---- errors against the reference -----------------------------------------------------------

function drawErrors(most = 200) {
  const { alignment } = view.opened.data;
  const { wer: errors } = view.opened.entry;
  byId("errors").hidden = !alignment;
  if (!alignment) return;
  const number = (op, name) => plural(alignment.filter((pair) => pair.op === op).length, name);
  const kinds = [number("S", "substitution"), number("D", "deletion"), number("I", "insertion")];
  const all = alignment.filter((pair) => pair.op !== "=").length;
  const rate = wer(view.opened.entry);
  const ofWords = rate === null ? "" : `, WER ${rateText(rate)} of ${plural(errors.words, "word")}`;
  byId("errors-title").textContent = `${plural(all, "error")}: ${kinds.join(", ")}${ofWords}`;
  byId("alignment").replaceChildren(...alignmentParts(alignment, most));
  byId("more-errors").hidden = all <= most;
  byId("more-errors").textContent = `Show all ${count(all)} errors`;
}

// ---- passages and their tokens --------------------------------------------------------------

const attemptOf = (passage) => view.opened.passages[passage]?.attempts[view.opened.attempts[passage]] ?? null;

function drawDraft(step, text, title = null) {
  return make("span", { class: `token draft shade-${Math.min(step, SHADES)}`, title, "data-step": step }, text);
}

function drawLegend() {
  const shades = Array.from({ length: SHADES }, (_, step) => drawDraft(step + 1, "token"));
  const kinds = Object.keys(KINDS).filter((kind) => overview.drafter || kind === "decoder");
  byId("legend").replaceChildren(...kinds.map((kind) => (kind === "draft"
    ? make("span", {}, ...shades, ` ${KINDS.draft}, 1 to ${SHADES} or more tokens ahead`)
    : make("span", {}, make("span", { class: `token ${kind}` }, "token"), ` ${KINDS[kind]}`))));
}

function drawToken(token) {
  const text = token.text.trimStart();
  if (token.kind === "draft") {
    const step = Math.max(1, token.step);
    return drawDraft(step, text || "·", `${KINDS.draft}, ${plural(step, "token")} ahead`);
  }
  const kind = `token ${token.kind}${token.special ? " special" : ""}`;
  return make("span", { class: kind, title: KINDS[token.kind] }, text || "·");
}

/** Return the token line: one element for each call, with its tokens. */
function drawTokens(tokens) {
  const line = make("p", { class: "tokens", dir: "auto" });
  let group = null;
  for (const token of tokens) {
    const space = token.text.length > token.text.trimStart().length || token.special ? " " : "";
    if (!group || group.dataset.call !== String(token.call)) {
      group = make("span", { class: "group", "data-call": String(token.call) });
      line.append(space, group);
    } else group.append(space);
    group.append(drawToken(token));
  }
  return line;
}

function drawMeasures(attempt) {
  const shown = [make("span", {}, `temperature ${attempt.temperature}`)];
  for (const [field, label, beyond] of MEASURES) {
    const value = attempt[field] ?? null;
    const threshold = overview.thresholds?.[field] ?? null;
    if (value === null) continue;
    const failed = threshold !== null && beyond(value, threshold);
    const compared = failed ? ` ${value > threshold ? ">" : "<"} ${twoDigits(threshold)}` : "";
    shown.push(make("span", { class: failed ? "beyond" : null }, `${label} ${twoDigits(value)}${compared}`));
  }
  return shown;
}

function drawAttempts(passage) {
  const { attempts } = view.opened.passages[passage];
  if (attempts.length === 1) {
    const measured = MEASURES.some(([field]) => (attempts[0][field] ?? null) !== null);
    return measured ? make("p", { class: "measures" }, ...drawMeasures(attempts[0])) : null;
  }
  const items = attempts.map((attempt, index) => {
    const pressed = String(index === view.opened.attempts[passage]);
    const attributes = { type: "button", class: "attempt measures", "data-attempt": index, "aria-pressed": pressed };
    const state = make("strong", {}, attempt.chosen ? "✓ chosen" : "✗ discarded");
    return make("li", {}, make("button", attributes, state, ...drawMeasures(attempt)));
  });
  return make("ul", { class: "attempts", "aria-label": "Attempts" }, ...items);
}

function drawPassage(position) {
  const index = view.opened.order[position];
  const passage = view.opened.passages[index];
  const attempt = attemptOf(index);
  const decoding = attempt && analyse(attempt);
  const range = `${clockTime(passage.start_s)} – ${clockTime(passage.end_s)}`;
  const from = { type: "button", class: "from", title: "Play from here" };
  const head = make("div", { class: "passage-head" }, view.opened.data.audio
    ? make("button", from, make("span", { "aria-hidden": "true" }, "▶ "), range)
    : make("span", { class: "range" }, range));
  if (decoding && decoding.calls.length) {
    const [tokens, calls] = [decoding.tokens.length, decoding.calls.length];
    const amounts = [plural(tokens, "token"), plural(calls, "call"), `${(tokens / calls).toFixed(2)} per call`];
    head.append(make("span", {}, [...amounts, duration(decoding.total)].join(", ")));
  }
  const words = passage.words.flatMap((word, number) => [
    number && word.text.trimStart() !== word.text ? " " : "",
    make("span", { class: "word", "data-word": number }, word.text.trim()),
  ]);
  const selected = index === view.opened.passage;
  const attributes = { "data-passage": index, class: `passage${selected ? " selected" : ""}` };
  const item = make(
    "li", { ...attributes, "aria-current": selected ? "true" : null }, head,
    attempt ? drawAttempts(index) : make("p", { class: "note" }, "no text"),
    words.length ? make("p", { class: "words", dir: "auto" }, ...words) : null,
    decoding ? drawTokens(decoding.tokens) : null,
  );
  markIn(item, index);
  return item;
}

/** Mark the selected call's tokens and the played word in a passage's element. */
function markIn(item, passage) {
  const { opened } = view;
  for (const group of item.querySelectorAll(".group")) {
    group.classList.toggle("current", passage === opened.passage && group.dataset.call === String(opened.call));
  }
  const word = opened.words[opened.word];
  for (const element of item.querySelectorAll(".word.now")) element.classList.remove("now");
  if (word && word.passage === passage) item.querySelectorAll(".word")[word.number]?.classList.add("now");
}

function mark(passage) {
  const item = view.opened.list.get(view.opened.order.indexOf(passage));
  if (item) markIn(item, passage);
}

function drawPassages() {
  const { opened } = view;
  const wanted = byId("find").value.trim().toLowerCase();
  const text = (index) => (attemptOf(index) ? textOf(attemptOf(index).tokens) : "").toLowerCase();
  opened.order = opened.passages.flatMap((_, index) => (!wanted || text(index).includes(wanted) ? [index] : []));
  byId("found").textContent = `${count(opened.order.length)} of ${plural(opened.passages.length, "passage")}`;
  const space = () => make("li", { "aria-hidden": "true", class: "space" });
  opened.list = windowedList(byId("passages"), opened.order.length, 260, drawPassage, space, stickyHeight);
}

/** Select a passage; the replay then shows its end, and the panel its first call. */
function select(passage, call = 0) {
  const { opened } = view;
  const before = opened.passage;
  if (!opened.passages.length) return;
  if (view.running) toggleReplay();
  opened.passage = passage;
  for (const index of new Set([before, passage])) opened.list.redraw(opened.order.indexOf(index));
  drawReplay();
  showCall(call);
}

// ---- replay ---------------------------------------------------------------------------------

/** Return the lanes: [name, analysed decoding], ours first. */
function lanes() {
  const { opened } = view;
  const attempt = attemptOf(opened.passage);
  const baseline = opened.passages[opened.passage]?.baseline;
  const named = [[draftsName, attempt], ["Without drafts", baseline]];
  return named.filter(([, decoding]) => decoding).map(([name, decoding]) => [name, analyse(decoding)]);
}

const longest = () => Math.max(0, ...lanes().map(([, lane]) => lane.total));
const replaySeconds = () => Math.min(15, Math.max(4, 0.25 * Math.max(...lanes().map(([, lane]) => lane.calls.length))));

function drawReplay() {
  const { opened } = view;
  byId("replay").hidden = byId("call").hidden = lanes().length === 0;
  const several = opened.passages.length > 1;
  byId("replay-title").textContent = `Replay${several ? ` of passage ${opened.passage + 1} of ${opened.passages.length}` : ""}`;
  byId("lanes").className = lanes().length > 1 ? "two" : "";
  byId("lanes").replaceChildren(...lanes().map(([name]) => make(
    "div", { class: "lane" }, make("h3", {}, name), make("p", { class: "progress" }),
    make("canvas", { class: "strip", "aria-hidden": "true" }),
    make("p", { class: "so-far", dir: "auto" }, make("span"), make("mark")),
  )));
  byId("clock").max = longest();
  const slower = longest() ? (1000 * replaySeconds()) / longest() : 1;
  const speed = `The replay runs at 1/${count(Math.max(1, slower))} of the recorded speed.`;
  byId("replay-note").textContent = `Decoder only, encoder excluded. ${speed}`;
  setClock(longest());
}

function drawLane(element, lane, clock, most) {
  const done = atMost(lane.ends, clock);
  const written = lane.tokens.filter((token) => token.written < done);
  const fresh = done < lane.calls.length ? written.filter((token) => token.written === done - 1) : [];
  const old = written.slice(0, written.length - fresh.length);
  element.classList.toggle("done", done === lane.calls.length);
  const elapsed = `${Math.min(clock, lane.total).toFixed(1)} ms`;
  element.querySelector(".progress").textContent = `${done} of ${plural(lane.calls.length, "call")}, ${elapsed}`;
  element.querySelector(".so-far span").textContent = textOf(old).trimStart();
  element.querySelector(".so-far mark").textContent = old.length ? textOf(fresh) : textOf(fresh).trimStart();
  element.querySelector(".so-far").scrollTop = clock < lane.total ? 1e6 : 0;
  drawStrip(element.querySelector("canvas"), lane, most, clock);
}

function setClock(clock) {
  const most = longest();
  view.opened.clock = Math.max(0, Math.min(most, clock));
  byId("clock").value = view.opened.clock;
  byId("clock-value").textContent = `${view.opened.clock.toFixed(1)} ms`;
  byId("clock").setAttribute("aria-valuetext", byId("clock-value").textContent);
  lanes().forEach(([, lane], index) => drawLane(byId("lanes").children[index], lane, view.opened.clock, most || 1));
}

/** Move the replay to a time, and show the last finished call. */
function replayTo(clock) {
  setClock(clock);
  const own = attemptOf(view.opened.passage);
  const done = own ? atMost(analyse(own).ends, view.opened.clock) : 0;
  if (done - 1 !== view.opened.call && done > 0) showCall(done - 1);
}

function toggleReplay() {
  if (view.running) cancelAnimationFrame(view.running.request);
  view.running = view.running ? null : { request: 0, time: performance.now() };
  byId("run").textContent = view.running ? "Pause" : "Replay";
  if (!view.running) return;
  if (view.opened.clock >= longest()) replayTo(0);
  const speed = longest() / (1000 * replaySeconds());
  const tick = (time) => {
    replayTo(view.opened.clock + Math.max(0, time - view.running.time) * speed);
    view.running.time = time;
    if (view.opened.clock >= longest()) toggleReplay();
    else view.running.request = requestAnimationFrame(tick);
  };
  view.running.request = requestAnimationFrame(tick);
}

// ---- one decoder call -----------------------------------------------------------------------

function chance(score) {
  if (score === null) return cells("–")[0];
  const meter = styled(make("span", { class: "meter", "aria-hidden": "true" }), { width: `${100 * Math.exp(score)}%` });
  return make("td", { class: "chance" }, meter, make("span", {}, probability(score)));
}

const preference = ([text, score]) => `${quoted(text)} ${overview.search === "beam" ? twoDigits(score) : probability(score)}`;
const preferences = (node) => (node && node.next.length ? node.next.map(preference).join(", ") : "–");

/** Return the rows of a call: each node, and what the decoder preferred in its place. */
function callRows(decoding, call) {
  const nodes = nodesOf(decoding, call);
  const parents = new Set(nodes.map((node) => node.parent));
  const row = (kind, depth, label, ...rest) => make(
    "tr", { class: kind },
    styled(make("th", { scope: "row", dir: "auto" }, label), { paddingInlineStart: `calc(.4rem + ${Math.min(depth, 12)} * var(--indent))` }),
    ...rest,
  );
  return inTreeOrder(nodes).flatMap(([depth, node]) => {
    const text = node.text === "<end>" ? "end of text" : node.text.trim() || "·";
    const parent = decoding.nodes[node.parent];
    const own = node.step > 0
      ? row(
        node.kept ? "kept" : "rejected", depth, drawDraft(node.step, text), chance(node.score),
        ...cells(node.kept ? "✓ kept" : "✗ rejected", preferences(parent)),
      )
      : row("context", depth, text, ...cells("–", node.kept ? "hypothesis" : "dropped", ""));
    if (!node.kept || parents.has(node.id) || !node.next.length) return [own];
    return [own, row("own", depth + 1, "no draft", ...cells("–", "", preferences(node)))];
  });
}

/** Show a call of the selected passage; with `move`, the replay moves to its end. */
function showCall(call, move = false) {
  const { opened } = view;
  const attempt = attemptOf(opened.passage);
  if (!attempt) return;
  const decoding = analyse(attempt);
  const last = decoding.calls.length - 1;
  opened.call = Math.max(0, Math.min(last, call));
  mark(opened.passage);
  const found = decoding.calls[opened.call];
  byId("call-title").textContent = found ? `Decoder call ${opened.call + 1} of ${last + 1}` : "No decoder call";
  byId("previous").disabled = opened.call <= 0;
  byId("next").disabled = opened.call >= last;
  byId("nodes").replaceChildren();
  byId("nodes").className = overview.search;
  byId("call-facts").textContent = byId("call-note").textContent = "";
  if (!found) return;
  if (move) setClock(decoding.ends[opened.call]);
  const drafts = nodesOf(decoding, opened.call).filter((node) => node.step > 0);
  const kept = drafts.filter((node) => node.kept).length;
  const [drafting, verification] = [duration(found.drafting_ms), duration(found.verification_ms)];
  const facts = drafts.length
    ? `Drafted by ${overview.drafter} in ${drafting}: ${plural(drafts.length, "token")}, ${kept} kept. Verified in ${verification}.`
    : `No drafts. Computed in ${verification}.`;
  byId("call-facts").textContent = `${facts} Text: ${found.steps[0]} → ${plural(found.steps[1], "token")}.`;
  const beam = overview.search === "beam";
  const head = headCells("Draft", "Drafter", "Result", beam ? "Decoder’s best, with scores" : "Decoder’s choice here");
  const rows = make("tbody", {}, ...callRows(decoding, opened.call));
  byId("nodes").append(make("thead", {}, make("tr", {}, ...head)), rows);
  byId("call-note").textContent = beam
    ? "Drafter: probability. Decoder: weighted log-probability of the search."
    : "Drafter and decoder: probability of the token.";
}

// ---- audio ----------------------------------------------------------------------------------

/** Return the address of a data: URI or of a relative path, which may contain "#" and "%". */
function addressOf(src) {
  return src.startsWith("data:") ? src : src.split("/").map(encodeURIComponent).join("/");
}

function playFrom(seconds) {
  byId("audio").currentTime = seconds;
  play();
}

function play() {
  byId("audio").play().catch((error) => {
    if (error.name !== "AbortError" && view.opened) fail();
  });
}

function fail() {
  byId("failure").hidden = false;
  byId("failure").textContent = `The audio cannot be played: ${view.opened.data.audio.src.slice(0, 200)}`;
}

const togglePlay = () => (byId("audio").paused ? play() : byId("audio").pause());
const audioSeconds = () => (Number.isFinite(byId("audio").duration) ? byId("audio").duration : view.opened.entry.seconds);

function drawWaveform(time) {
  const [context, width, height] = contextOf(byId("peaks"));
  const { peaks } = view.opened.data.audio;
  const [played, ahead] = [color("accent"), color("wave")];
  const bars = Math.min(peaks.length, Math.floor(width / 3));
  const position = (time / (audioSeconds() || 1)) * width;
  for (let bar = 0; bar < bars; bar += 1) {
    const [from, to] = [Math.floor((bar * peaks.length) / bars), Math.floor(((bar + 1) * peaks.length) / bars)];
    let peak = 0;
    for (let index = from; index < Math.max(to, from + 1); index += 1) peak = Math.max(peak, peaks[index]);
    const [x, size] = [(bar * width) / bars, Math.max(2, (peak / 255) * height)];
    context.fillStyle = x < position ? played : ahead;
    context.fillRect(x, (height - size) / 2, Math.max(1, width / bars - 1), size);
  }
  context.fillStyle = color("text");
  context.fillRect(Math.min(width - 2, position), 0, 2, height);
}

/** Show the audio's position in the waveform and the text. */
function drawPosition() {
  const { opened } = view;
  if (!opened || !opened.data.audio) return;
  const time = byId("audio").currentTime;
  byId("time").textContent = clockTime(time);
  byId("duration").textContent = clockTime(audioSeconds());
  byId("waveform").setAttribute("aria-valuemax", audioSeconds());
  byId("waveform").setAttribute("aria-valuenow", time);
  byId("waveform").setAttribute("aria-valuetext", `${clockTime(time)} of ${clockTime(audioSeconds())}`);
  drawWaveform(time);
  const found = atMost(opened.starts, time + 0.005) - 1;
  const word = found >= 0 && time < opened.words[found].end_s ? found : -1;
  if (word === opened.word) return;
  const passages = [opened.word, word].filter((index) => index >= 0).map((index) => opened.words[index].passage);
  opened.word = word;
  for (const passage of new Set(passages)) mark(passage);
  const [before, now] = [passages[0], opened.order.indexOf(passages.at(-1))];
  if (passages.length === 2 && before !== passages[1] && now >= 0 && !byId("audio").paused) opened.list.reveal(now);
}

function follow() {
  drawPosition();
  if (!byId("audio").paused) requestAnimationFrame(follow);
}

function seekTo(event) {
  const box = byId("waveform").getBoundingClientRect();
  byId("audio").currentTime = Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) * audioSeconds();
}

// ---- events ---------------------------------------------------------------------------------

function clickPassages(event) {
  const item = event.target.closest("[data-passage]");
  if (!item || !window.getSelection().isCollapsed) return;
  const passage = Number(item.dataset.passage);
  const [word, group, attempt] = [".word", ".group", ".attempt"].map((selector) => event.target.closest(selector));
  const start = view.opened.passages[passage].start_s;
  if (attempt) view.opened.attempts[passage] = Number(attempt.dataset.attempt);
  if (word && view.opened.data.audio) playFrom(view.opened.passages[passage].words[Number(word.dataset.word)].start_s);
  else if (event.target.closest(".from")) playFrom(start);
  else if (passage !== view.opened.passage || attempt) select(passage);
  if (group && group.dataset.call !== "null") showCall(Number(group.dataset.call), true);
}

function movePassage(by) {
  const { opened } = view;
  const position = opened.order.indexOf(opened.passage) + by;
  if (position < 0 || position >= opened.order.length) return;
  select(opened.order[position]);
  opened.list.reveal(position);
}

const inTable = (action) => () => (view.opened ? false : action());
const inUtterance = (action) => () => (view.opened?.passages.length ? action() : false);
/** Actions by key; if one returns false, the browser handles the key. */
const KEYS = {
  " ": inUtterance(() => (view.opened.data.audio ? togglePlay() : toggleReplay())),
  r: inUtterance(() => toggleReplay()),
  ArrowLeft: inUtterance(() => showCall(view.opened.call - 1, true)),
  ArrowRight: inUtterance(() => showCall(view.opened.call + 1, true)),
  j: () => (view.opened ? movePassage(1) : activate(view.table.active + 1)),
  k: () => (view.opened ? movePassage(-1) : activate(view.table.active - 1)),
  ArrowDown: inTable(() => activate(view.table.active + 1)),
  ArrowUp: inTable(() => activate(view.table.active - 1)),
  Enter: () => (view.opened ? playPassage() : openActive()),
  Escape: () => leave(),
  "/": () => byId(view.opened ? "find" : "filter").focus(),
  "?": () => byId("keys").showModal(),
};

function playPassage() {
  const passage = view.opened.passages[view.opened.passage];
  return passage && view.opened.data.audio ? playFrom(passage.start_s) : false;
}

function openActive() {
  const entry = overview.utterances[view.table.order[Math.max(0, view.table.active)]];
  if (entry) location.hash = hashOf(entry.id);
}

function pressKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  const { target, key } = event;
  const leaves = key === "Escape" || (target.id === "filter" && ["ArrowDown", "Enter"].includes(key));
  if (target.matches("input[type=search], select") && !leaves) return;
  if ([" ", "Enter"].includes(key) && target.closest("button, summary, a")) return;
  if (target.matches("input[type=search]") && key === "Escape") return void target.blur();
  if (target.id === "waveform" && ["ArrowLeft", "ArrowRight"].includes(key)) {
    byId("audio").currentTime += key === "ArrowLeft" ? -5 : 5;
    event.preventDefault();
    return;
  }
  const action = KEYS[key.length === 1 ? key.toLowerCase() : key];
  if (action && action() !== false) event.preventDefault();
}

function listen() {
  const on = (id, name, action) => byId(id).addEventListener(name, action);
  window.addEventListener("hashchange", route);
  window.addEventListener("scroll", () => (view.opened ?? view.table).list?.update(), { passive: true });
  window.addEventListener("resize", redrawCanvases);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCanvases);
  document.addEventListener("keydown", pressKey);
  on("back", "click", leave);
  on("help", "click", () => byId("keys").showModal());
  on("close", "click", () => byId("keys").close());
  on("headers", "click", (event) => {
    const button = event.target.closest("button");
    if (button) sortBy(Number(button.dataset.column));
  });
  on("filter", "input", redrawTable);
  on("rows", "click", (event) => {
    const row = event.target.closest("[data-row]");
    if (!row || !window.getSelection().isCollapsed) return;
    view.table.active = Number(row.dataset.row);
    if (!event.target.closest("a")) openActive();
  });
  on("find", "input", drawPassages);
  on("passages", "click", clickPassages);
  on("more-errors", "click", () => drawErrors(Infinity));
  on("run", "click", toggleReplay);
  on("clock", "input", (event) => replayTo(Number(event.target.value)));
  on("previous", "click", () => showCall(view.opened.call - 1, true));
  on("next", "click", () => showCall(view.opened.call + 1, true));
  on("play", "click", togglePlay);
  on("waveform", "pointerdown", seekTo);
  on("waveform", "pointermove", (event) => event.buttons && seekTo(event));
  on("speed", "change", (event) => {
    byId("audio").playbackRate = byId("audio").defaultPlaybackRate = Number(event.target.value);
  });
  on("audio", "error", () => view.opened && byId("audio").getAttribute("src") !== null && fail());
  for (const name of ["timeupdate", "seeked", "loadedmetadata"]) on("audio", name, drawPosition);
  for (const name of ["play", "pause"]) {
    on("audio", name, () => {
      byId("play").textContent = byId("audio").paused ? "Play" : "Pause";
      follow();
    });
  }
}

function redrawCanvases() {
  (view.opened ?? view.table).list?.update();
  if (!view.opened) return;
  drawPosition();
  if (view.opened.passages.length) setClock(view.opened.clock);
}

history.scrollRestoration = "manual";
drawLegend();
listen();
route();
