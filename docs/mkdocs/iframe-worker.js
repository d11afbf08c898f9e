// Browsers start no worker from a page that was opened from disk. There the search's worker runs
// in a hidden frame, which knows the three things that it uses: importScripts, postMessage, onmessage.
if (location.protocol === "file:") {
  const importScripts = (...urls) =>
    urls.reduce(
      (before, url) =>
        before.then(
          () =>
            new Promise((loaded, failed) => {
              const script = document.createElement("script");
              Object.assign(script, { src: url, onload: loaded, onerror: failed });
              document.body.appendChild(script);
            }),
        ),
      Promise.resolve(),
    );

  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      this.receive = (event) => {
        if (event.source === this.frame.contentWindow) {
          const message = new MessageEvent("message", { data: event.data });
          this.dispatchEvent(message);
          this.onmessage?.(message);
        }
      };
      addEventListener("message", this.receive);
      const inside = this.frame.contentWindow;
      inside.document.open();
      inside.document.write(
        "<body><script>postMessage = (data) => parent.postMessage(data, '*');" +
          `importScripts = ${importScripts}</script><script src="${url}"></script></body>`,
      );
      inside.document.close();
      this.ready = new Promise((loaded) => (inside.onload = loaded));
    }

    postMessage(data) {
      this.ready.then(() => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        this.frame.contentWindow.dispatchEvent(event);
      });
    }

    terminate() {
      removeEventListener("message", this.receive);
      this.frame.remove();
    }
  };
}
