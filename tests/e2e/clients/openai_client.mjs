// Requests of the OpenAI client for Node.js to all models until standard input ends. Prints one JSON object.
import { setTimeout as wait } from "node:timers/promises";
import OpenAI from "openai";

const [baseURL, apiKey, ...models] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const request = { messages: [{ role: "user", content: "Are you there?" }], max_tokens: 8 };
const pause = 1000; // ms

let requests = 0;
let ended = false;
const errors = [];
process.stdin.on("end", () => (ended = true)).resume();

async function complete(model) {
  const answer = await client.chat.completions.create({ ...request, model });
  if (!answer.usage.completion_tokens) throw new Error("no tokens");
  return answer.choices[0].finish_reason;
}

async function stream(model) {
  let finish;
  for await (const chunk of await client.chat.completions.create({ ...request, model, stream: true })) {
    finish = chunk.choices[0].finish_reason ?? finish;
  }
  return finish;
}

while (!ended) {
  await wait(pause);
  const model = models[Math.floor(requests / 2) % models.length];
  requests += 1;
  try {
    const finish = await (requests % 2 ? complete : stream)(model);
    if (!["stop", "length"].includes(finish)) errors.push(`${model}: finish reason ${finish}`);
  } catch (error) {
    errors.push(`${model}: ${error}`);
  }
}
console.log(JSON.stringify({ requests, errors }));
