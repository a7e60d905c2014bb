// Use each feature of the API once by the OpenAI client for Node.js. Arguments: URL, key and model.
// Prints a JSON object of client, feature and error; the error is empty where it works.
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const request = { model, messages: [{ role: "user", content: "Are you there?" }], max_tokens: 16 };
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", description: "Return the weather.", parameters } }];
const response = { model, input: "Are you there?", max_output_tokens: 16 };
const finished = ["stop", "length", "tool_calls"];

function check(condition, value) {
  if (!condition) throw new Error(JSON.stringify(value));
}

async function chat(options = {}) {
  const answer = await client.chat.completions.create({ ...request, ...options });
  check(finished.includes(answer.choices[0].finish_reason) && answer.usage.completion_tokens, answer);
}

async function stream() {
  let finish, usage, pieces = 0;
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create({ ...request, ...options })) {
    pieces += chunk.choices.length;
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  check(pieces > 1 && finished.includes(finish) && usage.completion_tokens, { pieces, finish, usage });
}

async function respond() {
  const answer = await client.responses.create(response);
  check(answer.usage.output_tokens, answer);
}

async function respondStreamed() {
  const events = [];
  for await (const event of await client.responses.create({ ...response, stream: true })) events.push(event.type);
  check(["response.completed", "response.incomplete"].includes(events.at(-1)), events);
}

async function unknown() {
  const error = await chat({ model: "none" }).then(() => null, (problem) => problem);
  check(error instanceof OpenAI.NotFoundError, String(error));
}

const features = {
  "list of models": async () => check((await client.models.list()).data.length, "no models"),
  chat,
  "chat, streamed": stream,
  "request with tools": () => chat({ tools }),
  response: respond,
  "response, streamed": respondStreamed,
  "unknown model is an error": unknown,
};
const found = {};
for (const [name, use] of Object.entries(features)) {
  found[name] = await use().then(() => "", (problem) => String(problem));
}
console.log(JSON.stringify({ "openai for Node.js": found }));
