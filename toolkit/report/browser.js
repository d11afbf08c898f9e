for (const browser of document.querySelectorAll(".browser")) {
  const PAGE = 25;
  const [ID, SPEAKER, SECONDS, SNR, ERRORS, WORDS, PIECES] = [0, 1, 2, 3, 4, 5, 6];
  const form = browser.querySelector("form");
  const table = browser.querySelector("table");
  const status = browser.querySelector("output");
  const buttons = browser.querySelector(".pager");
  const sources = [...browser.parentElement.querySelectorAll(".rows")];
  const cards = new Map();
  for (const card of document.querySelectorAll("article.utterance"))
    cards.set(`${card.dataset.split} ${card.dataset.utterance}`, card.id);
  const rate = (row) => (row[WORDS] ? (100 * row[ERRORS]) / row[WORDS] : null);
  const columns = [
    ["utterance", (row) => row[ID]],
    ["speaker", (row) => row[SPEAKER]],
    ["seconds", (row) => row[SECONDS], 2],
    ["SNR dB", (row) => row[SNR], 1],
    ["words", (row) => row[WORDS], 0, "extra"],
    ["errors", (row) => row[ERRORS], 0],
    ["WER %", rate, 1],
  ];
  let all = [], matches = [], left = 0, begin = 0, sorted = 5, down = true, known = columns;

  const make = (name, text, kind) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const said = (pieces) => pieces.map((p) => (typeof p === "string" ? p : p.join(" "))).join(" ");
  const load = () => {
    const source = sources[form.elements.split.value];
    all = JSON.parse(source.textContent);
    left = Number(source.dataset.leftOut);
    for (const row of all) row.said = `${row[ID]} ${said(row[PIECES])}`.toLowerCase();
    const speakers = [...new Set(all.map((row) => row[SPEAKER]))].sort();
    const options = speakers.map((speaker) => new Option(speaker || "unknown", speaker));
    form.elements.speaker.replaceChildren(new Option("all", ""), ...options);
    const noisy = all.some((row) => row[SNR] !== null);
    form.querySelector(".snr").hidden = !noisy;
    known = columns.filter(([name]) => noisy || name !== "SNR dB");
    filter();
  };
  const bound = (name, missing) => {
    const value = form.elements[name].value;
    return value === "" ? missing : Number(value);
  };
  const filter = () => {
    const { speaker, text } = form.elements;
    const chosen = speaker.selectedIndex > 0, words = text.value.trim().toLowerCase();
    const ranges = [["errors", ERRORS], ["seconds", SECONDS], ["snr", SNR]].map(([name, field]) => [
      field, bound(`${name}-from`, -Infinity), bound(`${name}-to`, Infinity),
    ]);
    const within = (row) => ranges.every(([field, low, high]) =>
      row[field] === null ? low === -Infinity && high === Infinity
        : low <= row[field] && row[field] <= high);
    matches = all.filter((row) => (!chosen || row[SPEAKER] === speaker.value)
      && (!words || row.said.includes(words)) && within(row));
    order();
  };
  const order = () => {
    const value = columns[sorted][1], sign = down ? -1 : 1;
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      if (x !== y) return x < y ? -sign : sign;
      return a[ID] < b[ID] ? -1 : Number(a[ID] > b[ID]);
    };
    matches.sort(compare);
    begin = 0;
    show();
  };
  const heading = ([name, value, , kind]) => {
    const own = columns.findIndex((column) => column[1] === value);
    const cell = make("th", undefined, kind);
    cell.scope = "col";
    const button = make("button", name);
    button.type = "button";
    if (own === sorted) cell.ariaSort = down ? "descending" : "ascending";
    button.addEventListener("click", () => {
      down = own === sorted ? !down : own >= 4;
      sorted = own;
      order();
      const again = table.querySelectorAll("th button")[known.findIndex((c) => c[1] === value)];
      again.focus();
    });
    cell.append(button);
    return cell;
  };
  const number = (value, digits) => (value === null ? "-" : value.toFixed(digits));
  const marked = (pieces) => {
    const line = make("td");
    for (const piece of pieces) {
      if (typeof piece === "string") {
        line.append(piece, " ");
        continue;
      }
      const [ref, hyp] = piece, kind = ref === null ? "new" : hyp === null ? "gone" : "sub";
      if (ref !== null) line.append(make("del", ref, kind), " ");
      if (hyp !== null) line.append(make("ins", hyp, kind), " ");
    }
    return line;
  };
  const lines = (row) => {
    const first = make("tr"), second = make("tr", undefined, "more");
    for (const [name, value, digits, kind] of known) {
      const cell = make(name === "utterance" ? "th" : "td", undefined, kind);
      const text = digits === undefined ? value(row) : number(value(row), digits);
      const anchor = cards.get(`${sources[form.elements.split.value].dataset.split} ${row[ID]}`);
      if (name === "utterance") cell.scope = "row";
      if (name === "utterance" && anchor) {
        const link = make("a", text);
        link.href = `#${anchor}`;
        cell.append(link);
      } else {
        cell.textContent = text;
      }
      first.append(cell);
    }
    const line = marked(row[PIECES]);
    line.colSpan = known.length;
    second.append(line);
    return [first, second];
  };
  const show = () => {
    const head = make("thead"), top = make("tr"), body = make("tbody");
    top.append(...known.map(heading));
    head.append(top);
    body.append(...matches.slice(begin, begin + PAGE).flatMap(lines));
    table.replaceChildren(head, body);
    const end = Math.min(begin + PAGE, matches.length), count = (n) => n.toLocaleString("en");
    const more = left ? `; ${count(left)} more with fewer errors are left out` : "";
    status.textContent = matches.length
      ? `${count(begin + 1)} to ${count(end)} of ${count(matches.length)}${more}`
      : `no utterances match${more}`;
    for (const [name, stop] of [["first", begin === 0], ["previous", begin === 0],
      ["next", end >= matches.length], ["last", end >= matches.length]])
      buttons.querySelector(`[name=${name}]`).setAttribute("aria-disabled", stop);
  };
  buttons.addEventListener("click", ({ target }) => {
    const last = Math.max(0, Math.floor((matches.length - 1) / PAGE) * PAGE);
    const next = { first: 0, previous: begin - PAGE, next: begin + PAGE, last }[target.name];
    if (next === undefined) return;
    begin = Math.min(last, Math.max(0, next));
    show();
  });
  const { split } = form.elements;
  split.replaceChildren(...sources.map((source, n) => new Option(source.dataset.title, n)));
  form.addEventListener("input", ({ target }) => (target === split ? load() : filter()));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    const kept = split.value;
    for (const field of form.querySelectorAll("input")) field.value = "";
    split.value = kept;
    form.elements.speaker.selectedIndex = 0;
    filter();
  });
  browser.hidden = false;
  load();
}
