"use strict";

const BYTES = 2;  // per sample
const BEHIND = 1.5;  // lag of recognition, in seconds, above which the page shows it
const byId = id => document.getElementById(id);
const [start, stop, file, download] = ["start", "stop", "file", "download"].map(byId);
const lines = [];  // of the text to download
let current = null;  // the recording in progress

/** One stream: a source of audio, the recorder, and the socket. */
class Recording {
  constructor(name) {
    this.name = name;
    this.sent = this.rate = 0;  // samples, Hz
    this.context = new AudioContext();
    this.finishing = this.ended = false;
  }

  /** Connect; resolves when the server has said which samples it takes. */
  connect() {
    const address = new URL("stream", location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    this.socket = new WebSocket(address);
    return new Promise(resolve => {
      this.socket.onmessage = ({data}) => this.receive(JSON.parse(data), resolve);
      this.socket.onclose = ({code, reason}) =>
        this.end(code === 1001 ? "The server has stopped." : reason || "The connection was lost.", true);
    });
  }

  receive(message, resolve) {
    if (message.type === "hello") {
      const {rate, format, channels} = message;
      this.rate = rate;
      byId("system").textContent = message.system;
      this.socket.send(JSON.stringify({type: "begin", rate, format, channels}));
      resolve();
    } else if (message.type === "partial") {
      byId("partial").textContent = message.text;
      this.behind(message.end);
    } else if (message.type === "final") {
      showFinal(message);
      this.behind(message.end);
    } else if (message.type === "done") {
      this.end(`${message.seconds.toFixed(1)} s recognised.`);
    } else if (message.type === "error") {
      this.end(message.reason, true);
    }
  }

  /** Show the source, and how far recognition is behind the audio that was sent. */
  behind(end) {
    const lag = this.sent / this.rate - end;
    if (!this.finishing && !this.ended) say(lag > BEHIND ? `${this.name}: ${lag.toFixed(1)} s behind` : this.name);
  }

  /** Send what a node plays, until `finish`. */
  async record(makeSource) {
    await this.context.audioWorklet.addModule("recorder.js");
    const options = {numberOfOutputs: 1, processorOptions: {rate: this.rate}};
    this.recorder = new AudioWorkletNode(this.context, "recorder", options);
    this.recorder.port.onmessage = ({data}) => {
      if (this.ended) return;
      if (data.last) {
        this.socket.send(JSON.stringify({type: "end"}));
        return;
      }
      this.socket.send(data.samples);
      this.sent += data.samples.byteLength / BYTES;
      showLevel(data.peak);
    };
    this.source = await makeSource(this.context);
    this.source.connect(this.recorder);
    this.recorder.connect(this.context.destination);  // silent, but otherwise no audio is pulled
    if (this.source.start) this.source.start();  // a file, from its first sample on
    await this.context.resume();
    say(this.name);
  }

  /** End the audio, and wait for the last words. */
  finish() {
    if (this.finishing || this.ended) return;
    this.finishing = true;
    stop.disabled = true;
    say("Waiting for the last words ...");
    this.release();
    if (this.recorder) this.recorder.port.postMessage("finish");
    else this.end("Nothing was recorded.");
  }

  release() {
    if (this.stream) this.stream.getTracks().forEach(track => track.stop());
    if (this.source && this.source.stop) this.source.stop();
  }

  end(message, fault = false) {
    if (this.ended) return;
    this.ended = true;
    current = null;
    this.release();
    if (this.context.state !== "closed") this.context.close();
    if (this.socket) this.socket.close();
    byId("partial").textContent = "";
    showLevel(0);
    say(message, fault);
    enable(true);
  }
}

/** Begin a recording; `open` returns a function that makes its source. */
async function begin(name, open) {
  enable(false);
  let recording = null;
  try {
    if (!window.isSecureContext || !window.AudioWorkletNode) {
      throw new Error("Browsers allow audio only on pages from this machine (localhost) or over https.");
    }
    recording = current = new Recording(name);
    say("Opening ...");
    const makeSource = await open(recording);
    await recording.connect();
    if (recording.ended) return;
    showSource(name);
    stop.disabled = false;
    await recording.record(makeSource);
  } catch (error) {
    if (recording) recording.end(error.message, true);
    else { say(error.message, true); enable(true); }
  }
}

start.onclick = () => begin("Microphone", async recording => {
  recording.stream = await navigator.mediaDevices.getUserMedia({audio: true});
  return context => context.createMediaStreamSource(recording.stream);
});

file.onchange = () => {
  const [chosen] = file.files;
  if (chosen) begin(chosen.name, async recording => {
    const audio = await recording.context.decodeAudioData(await chosen.arrayBuffer());
    return context => {
      const source = new AudioBufferSourceNode(context, {buffer: audio});
      source.onended = () => recording.finish();
      source.connect(context.destination);  // to be heard
      return source;
    };
  });
  file.value = "";
};

stop.onclick = () => current && current.finish();

download.onclick = () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], {type: "text/plain"}));
  link.download = "recognised.txt";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
};

function enable(ready) {
  start.disabled = file.disabled = !ready;
  document.querySelector("label.button").classList.toggle("off", !ready);
  stop.disabled = true;
}

function say(text, fault = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("fault", fault);
}

function showLevel(peak) {
  const decibels = Math.max(-60, Math.min(0, 20 * Math.log10(peak || 1e-9)));
  byId("level").style.width = `${100 * (1 + decibels / 60)}%`;
  byId("level").classList.toggle("loud", decibels > -1);
  byId("meter").setAttribute("aria-valuenow", decibels.toFixed(0));
}

function clock(seconds) {
  const whole = Math.floor(seconds * 10) / 10;
  return `${Math.floor(whole / 60)}:${(whole % 60).toFixed(1).padStart(4, "0")}`;
}

/** Add an element with a text, which is never read as markup. */
function add(parent, name, text) {
  const element = document.createElement(name);
  element.textContent = text;
  parent.append(element);
  return element;
}

function showSource(name) {
  lines.push(`# ${name}`);
  add(byId("finals"), "li", name).className = "source";
}

function showFinal({text, start: from, end: to, words}) {
  byId("partial").textContent = "";
  if (!text) return;
  const item = add(byId("finals"), "li", "");
  add(item, "time", `${clock(from)} – ${clock(to)}`);
  const said = add(item, "span", "");
  for (const word of words) {
    const sure = `${Math.round(100 * word.confidence)} %`;
    add(said, "span", word.word).title = `${clock(word.start)} – ${clock(word.end)}, ${sure}`;
    said.append(" ");
  }
  if (!words.length) said.textContent = text;
  item.scrollIntoView({block: "nearest"});
  lines.push(`${from.toFixed(2)}\t${to.toFixed(2)}\t${text}`);
  download.disabled = false;
}
