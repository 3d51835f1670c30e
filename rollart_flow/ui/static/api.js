// Answers of the server. Whoever asks gives the parameters; `at` is added by `Page`.

export class ApiError extends Error {}

export function query(parameters) {
  const given = Object.entries(parameters).flatMap(([name, value]) => [value].flat().map((each) => [name, each]))
    .filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given).toString();
  return text ? `?${text}` : "";
}

export async function get(path, parameters = {}, signal = undefined) {
  let answer, body;
  try {
    answer = await fetch(`/api/${path}${query(parameters)}`, { signal });
    body = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server does not answer; is `rollart ui` still running?");
  }
  try {
    body = JSON.parse(body);
  } catch {
    throw new ApiError(`the server did not take the request (status ${answer.status}); a query may have 50,000 characters`);
  }
  if (!answer.ok) throw new ApiError(body.error ?? `status ${answer.status}`);
  return body;
}

export const part = (text) => encodeURIComponent(text);
