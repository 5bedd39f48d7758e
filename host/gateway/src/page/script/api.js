// Requests with the key, which is kept in sessionStorage only, and the event stream. EventSource cannot send headers.

const KEY = "clawhost_key";
/** Silence after which the stream is opened again; the server sends a comment every 15 s by default. */
const SILENCE_MS = 60000;

const getKey = () => sessionStorage.getItem(KEY);
const setKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

/** An error response, with the message of the API. */
class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Sends a request and returns the response, or throws an ApiError. */
async function send(method, path, body, options = {}) {
  const headers = { ...options.headers };
  const key = getKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(location.origin + path, {
    method, headers, body: body === undefined ? undefined : JSON.stringify(body),
    signal: options.signal, cache: "no-store", credentials: "omit",
  });
  if (response.ok) return response;
  const text = await response.text();
  let message = `${response.status} ${response.statusText}`;
  try {
    message = JSON.parse(text).error.message ?? message;
  } catch {
    // Not an error of this server, but of a proxy.
  }
  throw new ApiError(response.status, message);
}

const getJson = async (path) => (await send("GET", path)).json();
const postJson = async (path, body) => (await send("POST", path, body)).json();

/** Calls `receive(event, data)` for each server-sent event of a response; `alive` for each part, comments included. */
async function readEvents(response, receive, alive = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    alive();
    buffer += value;
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      let name = "message";
      const data = [];
      for (const line of buffer.slice(0, end).split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
      }
      buffer = buffer.slice(end + 2);
      if (data.length > 0) receive(name, data.join("\n"));
    }
  }
}

/** Reads one event stream until it ends or is silent for too long. */
async function followEvents(signal, open, receive) {
  const stop = new AbortController();
  let timer;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(), SILENCE_MS);
  };
  alive();
  try {
    const response = await send("GET", `/v1/events${ownerQuery(getOwner())}`, undefined, { signal: AbortSignal.any([signal, stop.signal]) });
    open();
    await readEvents(response, receive, alive);
  } finally {
    clearTimeout(timer);
  }
}
