// The openai npm SDK: whole replies, streams, its stream helper, and the ways to pick a calibration.

import { readFileSync } from "node:fs";
import OpenAI from "openai";

const URL_ = process.env.SEAM_URL;
const REQUEST = JSON.parse(readFileSync(new URL("request.json", import.meta.url)));
const KEY = { apiKey: "none", maxRetries: 0, timeout: 300_000 };
const client = new OpenAI({ baseURL: `${URL_}/v1`, ...KEY });

const reply = (text, calls, more) => ({ text: text || null, calls, ...more });

function whole(completion) {
  const { message, finish_reason: finish } = completion.choices[0];
  const calls = (message.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]);
  return reply(message.content, calls, { finish, model: completion.model });
}

const picked = async (calibration) =>
  whole(await client.chat.completions.create({ ...REQUEST, calibration }));

async function streamed(calibration) {
  let text = "";
  let finish = null;
  const calls = [];
  for await (const chunk of await client.chat.completions.create({ ...REQUEST, calibration, stream: true })) {
    for (const choice of chunk.choices) {
      text += choice.delta.content ?? "";
      finish = choice.finish_reason ?? finish;
      for (const piece of choice.delta.tool_calls ?? []) {
        const call = (calls[piece.index] ??= ["", ""]);
        call[0] += piece.function.name ?? "";
        call[1] += piece.function.arguments ?? "";
      }
    }
  }
  return reply(text, calls, { finish });
}

const scenarios = {
  call: () => picked("eager"),
  text: () => picked("shy"),
  call_streamed: () => streamed("eager"),
  text_streamed: () => streamed("shy"),
  call_by_inline_object: () => picked({ bias: 20 }),

  async call_by_stream_helper() {
    const stream = client.chat.completions.stream({ ...REQUEST, calibration: "eager" });
    return whole(await stream.finalChatCompletion());
  },

  async call_by_model_suffix() {
    return whole(await client.chat.completions.create({ ...REQUEST, model: "lab@eager" }));
  },

  async call_by_url_prefix() {
    const prefixed = new OpenAI({ baseURL: `${URL_}/p/eager/v1`, ...KEY });
    return whole(await prefixed.chat.completions.create(REQUEST));
  },

  async call_by_header() {
    const withHeader = new OpenAI({
      baseURL: `${URL_}/v1`,
      defaultHeaders: { "X-Calibration": "eager" },
      ...KEY,
    });
    return whole(await withHeader.chat.completions.create(REQUEST));
  },

  async explained() {
    const calibration = { profile: "eager", explain: true };
    const { data, response } = await client.chat.completions
      .create({ ...REQUEST, calibration })
      .withResponse();
    const headers = Object.fromEntries([...response.headers].filter(([name]) => name.startsWith("x-")));
    return { ...whole(data), calibration: data.calibration, headers };
  },

  async unknown_name() {
    try {
      await picked("eagre");
    } catch (error) {
      if (!(error instanceof OpenAI.BadRequestError)) throw error;
      return { status: error.status, message: error.error.message, param: error.param };
    }
  },

  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    return ids;
  },
};

const seen = {};
for (const [name, scenario] of Object.entries(scenarios)) {
  try {
    seen[name] = await scenario();
  } catch (error) {
    seen[name] = { failed: `${error.name}: ${error.message}` };
  }
}
console.log(JSON.stringify(seen));
