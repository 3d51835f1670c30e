// Values as text.

export function number(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "-" : String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en-US").replaceAll(",", " ");
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(2);
  return size >= 1000 ? number(Math.round(value)) : String(Number(value.toPrecision(4)));
}

export function seconds(value) {
  if (typeof value !== "number") return number(value);
  if (value < 1) return `${number(Number((value * 1000).toPrecision(3)))} ms`;
  if (value < 60) return `${number(Number(value.toPrecision(3)))} s`;
  const whole = Math.round(value);
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h} h ${m} min` : `${m} min ${s} s`;
}

export function share(value) {
  return typeof value === "number" ? `${Number((100 * value).toFixed(1))} %` : number(value);
}

export function moment(value) {
  if (!value) return "-";
  const at = new Date(/[zZ]|[+-]\d\d:\d\d$/.test(value) ? value : `${value}Z`);
  return Number.isNaN(at.getTime()) ? value : at.toISOString().slice(0, 19).replace("T", " ");
}

// Any value as text, by the type of its column.
export function text(value, type) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "object" && "cut" in value) {
    const shown = typeof value.cut === "string" ? value.cut : JSON.stringify(value.cut);
    return `${shown} ...`;
  }
  if (type === "time") return moment(value);
  if (typeof value === "number") return number(value);
  if (typeof value === "object") return JSON.stringify(value);
  return String(value);
}

const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

// A text in which controls are names: escape sequences, and marks that turn the direction of text.
export function visible(text) {
  return String(text).replace(CONTROLS, (each) => `\u27e8${each.codePointAt(0).toString(16).padStart(4, "0")}\u27e9`);
}
