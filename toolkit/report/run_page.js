"use strict";
for (const sound of document.querySelectorAll(".sound")) {
  const audio = sound.querySelector("audio");
  const picture = sound.querySelector(".picture");
  const head = sound.querySelector(".head");
  const place = () => {
    head.style.left = `${(100 * audio.currentTime) / (audio.duration || 1)}%`;
    if (!audio.paused) requestAnimationFrame(place);
  };
  audio.addEventListener("play", () => {
    for (const other of document.querySelectorAll("audio")) if (other !== audio) other.pause();
    place();
  });
  audio.addEventListener("seeked", place);
  picture.addEventListener("click", (event) => {
    const box = picture.getBoundingClientRect();
    audio.currentTime = ((event.clientX - box.left) / box.width) * (audio.duration || 0);
    audio.play();
  });
}
