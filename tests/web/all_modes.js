// Shows a request context with everything in it that there can be, an item of each mode among it.
import("/ui/view.js").then(({ contextView }) => {
  const modes = ["always", "manual", "agent", "expansion", "learned", "retained", "uncertain", "working_set"];
  const items = modes.map((mode) => ({
    type: "tool",
    name: `server__a_rather_long_name_of_a_tool_that_was_${mode}`,
    server: "server",
    include_mode: mode,
    score: 0.5,
    tokens: 1,
    why: "told",
    description: "https://example.com/a/very/long/address/without/any/place/to/break/it/anywhere/at/all",
    priority: 5,
  }));
  const told = { time: 1, query: "q", origin: "search", session: "s", failure: "failed", note: "noted", seconds: 1, rerank: { reason: "by" } };
  const request = { ...told, id: "1", tokens: 6, items, dropped: items, near_misses: items, interactions: [{ interaction_type: "call", agent_name: "a", time: 1, tokens: 1 }] };
  document.getElementById("context").replaceChildren(...contextView(request, 100, "name", false));
  return true;
})
