// The unmodified `openai` client of Node.js.

import OpenAI from 'openai';
import { ASKS_WEATHER, GREETING, GREETS, SAYS_WEATHER, WEATHER, WEATHER_IS, assert, model, run, url } from './cases.mjs';

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'anything', maxRetries: 0 });
const name = await model();
const user = (content) => [{ role: 'user', content }];
const tools = [{ type: 'function', function: { name: 'get_weather', parameters: WEATHER } }];

await run({
  async create() {
    const reply = await client.chat.completions.create({ model: name, messages: user(GREETS), temperature: 0 });
    assert.equal(reply.choices[0].message.content, GREETING);
  },
  async stream() {
    let text = '';
    const stream = await client.chat.completions.create({ model: name, messages: user(GREETS), temperature: 0, stream: true });
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? '';
    assert.equal(text, GREETING);
  },
  async tools() {
    const messages = user(ASKS_WEATHER);
    const first = await client.chat.completions.create({ model: name, messages, tools, temperature: 0 });
    const call = first.choices[0].message.tool_calls[0];
    assert.deepEqual(JSON.parse(call.function.arguments), { city: 'Paris' });
    messages.push(first.choices[0].message, { role: 'tool', tool_call_id: call.id, content: WEATHER_IS });
    const second = await client.chat.completions.create({ model: name, messages, tools, temperature: 0 });
    assert.equal(second.choices[0].message.content, SAYS_WEATHER);
  },
  async runTools() {
    const asked = [];
    const runner = client.chat.completions.runTools({
      model: name,
      temperature: 0,
      messages: user(ASKS_WEATHER),
      tools: [
        {
          type: 'function',
          function: {
            name: 'get_weather',
            description: 'The weather of a city.',
            parameters: WEATHER,
            parse: JSON.parse,
            function: ({ city }) => {
              asked.push(city);
              return WEATHER_IS;
            },
          },
        },
      ],
    });
    assert.equal(await runner.finalContent(), SAYS_WEATHER);
    assert.deepEqual(asked, ['Paris']);
  },
  async responses() {
    const reply = await client.responses.create({ model: name, input: GREETS, temperature: 0 });
    assert.equal(reply.output_text, GREETING);
    const stream = client.responses.stream({ model: name, input: GREETS, temperature: 0 });
    for await (const event of stream) assert.ok(event.type.startsWith('response.'));
    assert.equal((await stream.finalResponse()).output_text, GREETING);
  },
  async errors() {
    await assert.rejects(client.chat.completions.create({ model: 'gpt-x', messages: user('x') }), (error) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.equal(error.code, 'model_not_found');
      return true;
    });
    await assert.rejects(client.models.retrieve('nothing'), OpenAI.NotFoundError);
  },
});
