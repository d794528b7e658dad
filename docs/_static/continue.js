// Leads back to where the reader stopped: the section of a lesson, or the next lesson if that one was read to its end.
"use strict";

{
  const links = [...document.querySelectorAll(".sidebar-tree a")].filter((link) => Progress.lesson(link.href));
  const {read, last: [stopped, section]} = Progress.load();
  const place = links.findIndex((link) => Progress.lesson(link.href) === stopped);
  if (place >= 0) {
    const next = links[place + (read[stopped] ? 1 : 0)];
    const bar = document.createElement("p");
    bar.className = "progress";
    if (next) {
      const link = document.createElement("a");
      link.textContent = `Continue with lesson ${next.textContent}`;
      link.href = read[stopped] || !section ? next.href : `${next.href}#${section}`;
      bar.append(link);
    }
    const forget = document.createElement("button");
    forget.textContent = "Forget my progress";
    forget.onclick = () => {
      localStorage.removeItem(Progress.key);
      Progress.mark(Progress.load());
      bar.remove();
    };
    bar.append("✓ read to the end, ★ exercise passed. Only this browser knows.", forget);
    document.querySelector(".doors, .sphx-glr-thumbnails").before(bar);
  }
}
