"use strict";
for (const sound of document.querySelectorAll(".sound")) {
  const audio = sound.querySelector("audio");
  const picture = sound.querySelector(".picture");
  const head = sound.querySelector(".head");
  const timed = [...sound.querySelectorAll(".times > span")];
  // Recognised words of the text below, in the order of their times.
  const text = [...sound.parentElement.querySelectorAll(".spoken > span, .spoken > ins")];
  const parts = timed.map((word, n) => [
    Number(word.dataset.start), Number(word.dataset.end), [word, text[n]].filter(Boolean),
  ]);
  const light = () => {
    head.style.left = `${(100 * audio.currentTime) / (audio.duration || 1)}%`;
    for (const [start, end, elements] of parts) {
      const now = start <= audio.currentTime && audio.currentTime < end;
      for (const element of elements) element.classList.toggle("now", now);
    }
  };
  const follow = () => {
    light();
    if (!audio.paused) requestAnimationFrame(follow);
  };
  const playFrom = (seconds) => {
    audio.currentTime = seconds;
    audio.play();
  };
  audio.addEventListener("play", () => {
    for (const other of document.querySelectorAll("audio")) if (other !== audio) other.pause();
    follow();
  });
  for (const name of ["seeked", "timeupdate", "pause"]) audio.addEventListener(name, light);
  picture.addEventListener("click", (event) => {
    const box = picture.getBoundingClientRect();
    playFrom(((event.clientX - box.left) / box.width) * (audio.duration || 0));
  });
  for (const [start, , elements] of parts)
    for (const element of elements) element.addEventListener("click", () => playFrom(start));
}
