// The chat box: streams /v1/chat/completions, and sends feedback on each reply.

/** Time between two drawings of a growing reply. */
const DRAW_MS = 50;

/** The messages of the conversation, its session, and the request in progress. */
let chat = { messages: [], session: null, abort: null };

function addMessage(role) {
  const text = element("div", { class: "content" });
  const meta = element("div", { class: "meta" });
  const node = element("div", { class: `message ${role}` }, text, meta);
  const log = byId("chat-log");
  log.append(node);
  log.scrollTop = log.scrollHeight;
  return { node, text, meta };
}

function feedbackButtons(turn) {
  const status = element("span", {});
  const buttons = [["👍", 1, "Good reply"], ["👎", -1, "Bad reply"]].map(([icon, score, label]) =>
    element("button", {
      type: "button", title: label, "aria-label": label,
      onclick: async (event) => {
        const chosen = event.currentTarget;
        try {
          await postJson("/v1/feedback", { turn_id: turn, score });
          for (const button of buttons) button.classList.toggle("chosen", button === chosen);
          status.textContent = `feedback ${formatSigned(score)} recorded`;
        } catch (error) {
          status.textContent = error.message;
        }
      },
    }, icon));
  return [...buttons, status];
}

/** Shows the turn and the adapter version of a reply, and once it is complete the feedback buttons. */
function showReplyMeta(reply, response, complete) {
  const turn = Number(response.headers.get("x-clawhost-turn"));
  const adapter = response.headers.get("x-clawhost-adapter");
  reply.meta.replaceChildren(
    ...(turn ? [element("span", { class: "turn" }, `turn ${turn}`)] : []),
    ...(adapter ? [element("span", { class: "adapter" }, `adapter ${adapter}`)] : []),
    ...(turn && complete && hasScope("feedback") ? feedbackButtons(turn) : []));
}

/** Adds the text of a chunk to the answer. A fast reply has many chunks, so the text is drawn at intervals. */
function receiveChunk(reply, chunk, answer) {
  if (chunk.error) throw new Error(chunk.error.message);
  const delta = chunk.choices?.[0]?.delta ?? {};
  reply.thinking = (reply.thinking ?? "") + (delta.reasoning_content ?? "");
  answer.content += delta.content ?? "";
  reply.timer ??= setTimeout(() => drawReply(reply, answer), DRAW_MS);
}

function drawReply(reply, answer) {
  clearTimeout(reply.timer);
  reply.timer = null;
  const thinking = reply.thinking ? [element("div", { class: "thinking" }, reply.thinking)] : [];
  reply.text.replaceChildren(...thinking, answer.content);
  const log = byId("chat-log");
  log.scrollTop = log.scrollHeight;
}

async function sendChat(text) {
  if (chat.messages.length === 0) byId("chat-log").replaceChildren();
  addMessage("user").text.textContent = text;
  const current = chat;
  const messages = [...current.messages, { role: "user", content: text }];
  const answer = { role: "assistant", content: "" };
  const reply = addMessage("assistant");
  current.abort = new AbortController();
  showChatState();
  try {
    const headers = current.session ? { "X-Session-Id": current.session } : {};
    const body = { messages, stream: true };
    const response = await send("POST", "/v1/chat/completions", body, { headers, signal: current.abort.signal });
    current.session = response.headers.get("x-clawhost-session");
    showReplyMeta(reply, response, false);
    await readEvents(response, (_, data) => {
      if (data !== "[DONE]") receiveChunk(reply, JSON.parse(data), answer);
    });
    current.messages = [...messages, answer];
    showReplyMeta(reply, response, true);
  } catch (error) {
    const stopped = current.abort.signal.aborted;
    reply.meta.append(element("span", { class: stopped ? "none" : "bad" }, stopped ? "stopped" : error.message));
  } finally {
    drawReply(reply, answer);
    current.abort = null;
    showChatState();
  }
}

function showChatState() {
  byId("chat-send").hidden = chat.abort !== null;
  byId("chat-stop").hidden = chat.abort === null;
}

function startChat() {
  const input = byId("chat-input");
  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (!text || chat.abort) return;
    input.value = "";
    sendChat(text);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("chat-form").requestSubmit();
    }
  });
  byId("chat-stop").addEventListener("click", () => chat.abort?.abort());
  byId("chat-new").addEventListener("click", () => {
    chat.abort?.abort();
    chat = { messages: [], session: null, abort: null };
    byId("chat-log").replaceChildren(none("A new conversation."));
    showChatState();
  });
}
