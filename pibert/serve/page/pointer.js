// Pointer and keys on a panel: cursor, probe, slice and zoom, the same in all panels.

import { currentView, wholeView } from "./panels.js";
import { state, update } from "./state.js";

const STILL = 4; // pixels that a click may move
const DEEPEST = 4; // cells that must stay in view

let anchor = null; // start of a slice drawn with keys

export function attach(panel) {
  const { canvas } = panel;
  let pressed = null;

  canvas.addEventListener("pointermove", (event) => {
    if (pressed && moved(pressed, event) > STILL) {
      drag(panel, pressed, event);
      return;
    }
    const position = panel.toCells(event);
    update({ cursor: position && cellOf(position) });
  });
  canvas.addEventListener("pointerleave", (event) => {
    // A lifted finger leaves too; keep the cursor.
    if (!pressed && event.pointerType === "mouse") update({ cursor: null });
  });
  canvas.addEventListener("pointerdown", (event) => {
    const position = panel.toCells(event);
    if (!position || event.button !== 0) return;
    pressed = { ...position, event, isSlice: state.isSlicing || event.shiftKey };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (!pressed) return;
    if (moved(pressed, event) <= STILL) update({ probe: cellOf(pressed), cursor: cellOf(pressed) });
    else if (!pressed.isSlice && state.drag) zoomTo(state.drag);
    pressed = null;
    update({ drag: null });
  });
  canvas.addEventListener("pointercancel", () => {
    pressed = null;
    update({ drag: null });
  });
  canvas.addEventListener("dblclick", () => update({ view: null }));
  canvas.addEventListener(
    "wheel",
    (event) => {
      const position = panel.toCells(event);
      const isOut = event.deltaY > 0;
      if (!position || (isOut && !state.view)) return; // the page scrolls
      event.preventDefault();
      zoom(isOut ? 1.25 : 0.8, position);
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const [ny, nx] = state.recording.shape;
    if (step[event.key]) {
      const from = state.cursor ?? cellOf(middle());
      const [dx, dy] = step[event.key];
      const cursor = { x: bound(from.x + dx, nx - 1), y: bound(from.y + dy, ny - 1) };
      update({ cursor });
      anchor = event.shiftKey ? (anchor ?? from) : null;
      if (anchor) update({ slice: between(anchor, cursor) });
    } else if (event.key === "Enter") {
      anchor = null;
      update({ probe: state.cursor ?? cellOf(middle()) });
    } else {
      return;
    }
    event.preventDefault();
    event.stopPropagation();
  });
}

/** A slice from the centre of a cell to that of another. */
function between(a, b) {
  return { x0: a.x + 0.5, y0: a.y + 0.5, x1: b.x + 0.5, y1: b.y + 0.5 };
}

function moved(pressed, event) {
  return Math.hypot(event.clientX - pressed.event.clientX, event.clientY - pressed.event.clientY);
}

function drag(panel, pressed, event) {
  const end = panel.toCells(event, true);
  if (pressed.isSlice) {
    update({ slice: { x0: pressed.x, y0: pressed.y, x1: end.x, y1: end.y }, cursor: null });
    return;
  }
  const ends = (a, b) => [Math.min(a, b), Math.max(a, b)];
  const [[x0, x1], [y0, y1]] = [ends(pressed.x, end.x), ends(pressed.y, end.y)];
  update({ drag: { x0, x1, y0, y1 }, cursor: null });
}

function cellOf({ x, y }) {
  const [ny, nx] = state.recording.shape;
  return { x: bound(Math.floor(x), nx - 1), y: bound(Math.floor(y), ny - 1) };
}

function bound(value, most) {
  return Math.min(Math.max(value, 0), most);
}

function middle() {
  const view = currentView();
  return { x: (view.x0 + view.x1) / 2, y: (view.y0 + view.y1) / 2 };
}

/** Show a box, enlarged to the aspect ratio of the field. */
function zoomTo({ x0, x1, y0, y1 }) {
  const whole = wholeView();
  const share = Math.max((x1 - x0) / whole.x1, (y1 - y0) / whole.y1);
  show(share, (x0 + x1) / 2, (y0 + y1) / 2);
}

/** Zoom out (factor above 1) or in around a point, which does not move. */
export function zoom(factor, position = state.cursor ?? middle()) {
  const [view, whole] = [currentView(), wholeView()];
  const share = Math.min(1, ((view.x1 - view.x0) / whole.x1) * factor);
  const scale = (share * whole.x1) / (view.x1 - view.x0);
  const centre = middle();
  const x = position.x + (centre.x - position.x) * scale;
  show(share, x, position.y + (centre.y - position.y) * scale);
}

function show(share, x, y) {
  const whole = wholeView();
  const least = Math.min(1, DEEPEST / Math.min(whole.x1, whole.y1));
  const kept = Math.max(share, least);
  if (kept >= 1) {
    update({ view: null });
    return;
  }
  const [width, height] = [kept * whole.x1, kept * whole.y1];
  const x0 = bound(x - width / 2, whole.x1 - width);
  const y0 = bound(y - height / 2, whole.y1 - height);
  update({ view: { x0, x1: x0 + width, y0, y1: y0 + height } });
}
