"use strict";
// An AudioWorklet of the page: resamples the microphone or a file, and posts samples in messages.

const REACH = 16;  // half the length of the filter, in samples of the lower rate
const MESSAGE = 0.1;  // seconds of audio per message

/** Resamples a stream with a windowed sinc: out[n] = sum of in[k] h(n * from / to - k). */
class Resampler {
  constructor(from, to) {
    const divisor = (a, b) => b ? divisor(b, a % b) : a;
    const common = divisor(from, to);
    this.up = to / common;  // phases of the filter
    this.down = from / common;
    const cutoff = Math.min(1, to / from);
    this.reach = from === to ? 0 : Math.ceil(REACH / cutoff);
    this.filters = Array.from({length: this.up}, (_, phase) => this.filter(phase / this.up, cutoff));
    this.kept = new Float32Array(this.reach);  // silence before the first sample
    this.next = 0;  // position in `kept` of the next result's first input
    this.phase = 0;
  }

  /** Coefficients for a result that lies `offset` of a sample after an input. */
  filter(offset, cutoff) {
    if (!this.reach) return Float32Array.of(1);
    const taps = Float32Array.from({length: 2 * this.reach + 1}, (_, k) => {
      const x = k - this.reach - offset;
      const inside = Math.abs(x) < this.reach;
      const sinc = x ? Math.sin(Math.PI * cutoff * x) / (Math.PI * x) : cutoff;
      return inside ? sinc * (0.5 + 0.5 * Math.cos(Math.PI * x / this.reach)) : 0;
    });
    const sum = taps.reduce((a, b) => a + b, 0);
    return taps.map(tap => tap / sum);
  }

  push(samples) {
    const input = new Float32Array(this.kept.length + samples.length);
    input.set(this.kept);
    input.set(samples, this.kept.length);
    const found = [], width = 2 * this.reach + 1;
    while (this.next + width <= input.length) {
      const taps = this.filters[this.phase];
      let sum = 0;
      for (let k = 0; k < width; k++) sum += taps[k] * input[this.next + k];
      found.push(sum);
      this.phase += this.down;
      this.next += Math.floor(this.phase / this.up);
      this.phase %= this.up;
    }
    const drop = Math.min(this.next, input.length);
    this.kept = input.slice(drop);
    this.next -= drop;
    return found;
  }

  finish() {
    return this.push(new Float32Array(this.reach));
  }
}

class Recorder extends AudioWorkletProcessor {
  constructor({processorOptions: {rate}}) {
    super();
    this.resampler = new Resampler(sampleRate, rate);
    this.message = new Int16Array(Math.round(MESSAGE * rate));
    this.filled = this.peak = 0;
    this.ended = false;
    this.port.onmessage = () => {
      this.take(this.resampler.finish());
      this.send();
      this.port.postMessage({last: true});
      this.ended = true;
    };
  }

  process([channels]) {
    if (this.ended) return false;
    if (channels.length) {
      const mono = new Float32Array(channels[0].length);
      for (const channel of channels) channel.forEach((x, i) => { mono[i] += x / channels.length; });
      this.take(this.resampler.push(mono));
    }
    return true;
  }

  take(samples) {
    for (const x of samples) {
      this.peak = Math.max(this.peak, Math.abs(x));
      const value = Math.max(-32768, Math.min(32767, Math.round(32768 * x)));
      this.message[this.filled++] = value;
      if (this.filled === this.message.length) this.send();
    }
  }

  send() {
    if (!this.filled) return;
    const samples = this.message.slice(0, this.filled).buffer;
    this.port.postMessage({samples, peak: this.peak}, [samples]);
    this.filled = this.peak = 0;
  }
}

registerProcessor("recorder", Recorder);
