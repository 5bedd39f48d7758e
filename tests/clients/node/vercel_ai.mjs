// The Vercel AI SDK with its OpenAI-compatible provider.

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { Output, generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';
import { ASKS_WEATHER, GREETING, GREETS, SAYS_WEATHER, WEATHER_IS, assert, model, run, url } from './cases.mjs';

const provider = createOpenAICompatible({ name: 'clawhost', baseURL: `${url}/v1`, apiKey: 'anything', includeUsage: true, supportsStructuredOutputs: true });
const common = { model: provider(await model()), temperature: 0, maxRetries: 0 };
const tools = {
  get_weather: tool({
    description: 'The weather of a city.',
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      assert.equal(city, 'Paris');
      return WEATHER_IS;
    },
    // Plain text, because JSON would end with a quotation mark.
    toModelOutput: () => ({ type: 'text', value: WEATHER_IS }),
  }),
};

await run({
  async generateText() {
    const { text, usage, finishReason } = await generateText({ ...common, prompt: GREETS });
    assert.equal(text, GREETING);
    assert.equal(finishReason, 'stop');
    assert.ok(usage.outputTokens > 3);
  },
  async streamText() {
    const { textStream, usage } = streamText({ ...common, prompt: GREETS });
    const pieces = [];
    for await (const piece of textStream) pieces.push(piece);
    assert.equal(pieces.join(''), GREETING);
    assert.ok(pieces.length > 2);
    assert.ok((await usage).outputTokens > 3);
  },
  async tools() {
    const whole = await generateText({ ...common, prompt: ASKS_WEATHER, tools, stopWhen: stepCountIs(3) });
    assert.equal(whole.text, SAYS_WEATHER);
    assert.equal(whole.steps.length, 2);
    const streamed = streamText({ ...common, prompt: ASKS_WEATHER, tools, stopWhen: stepCountIs(3) });
    for await (const part of streamed.fullStream) assert.notEqual(part.type, 'error');
    assert.equal(await streamed.text, SAYS_WEATHER);
  },
  async structuredOutput() {
    const schema = z.object({ city: z.enum(['Paris', 'Rome']), degrees: z.number().int().min(0).max(9) });
    const { output } = await generateText({ ...common, prompt: GREETS, output: Output.object({ schema }) });
    assert.ok(schema.parse(output));
  },
  async forcedTools() {
    const choose_city = tool({ description: 'Chooses a city.', inputSchema: z.object({ city: z.enum(['Paris', 'Rome']) }) });
    const { toolCalls } = await generateText({ ...common, prompt: GREETS, tools: { choose_city }, toolChoice: 'required' });
    assert.ok(toolCalls.length > 0);
    for (const call of toolCalls) {
      assert.equal(call.toolName, 'choose_city');
      assert.ok(['Paris', 'Rome'].includes(call.input.city));
    }
  },
  async errors() {
    const asked = { ...common, model: provider('gpt-x'), prompt: GREETS };
    await assert.rejects(generateText(asked), (error) => error.statusCode === 404 && /gpt-x/.test(error.message));
  },
});
