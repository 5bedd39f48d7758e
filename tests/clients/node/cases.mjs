// Runs cases in order against the address in the arguments, and prints their names as JSON. The model's replies are in
// `tests/conformance/model.rs`.

import { strict as assert } from 'node:assert';

export const url = process.argv[2];
export const GREETS = 'Say hello!';
export const GREETING = 'Hello there, friend.';
export const ASKS_WEATHER = 'What is the weather in Paris?';
export const WEATHER_IS = '22 degrees;';
export const SAYS_WEATHER = 'It is 22 degrees.';
export const WEATHER = {
  type: 'object',
  properties: { city: { type: 'string' } },
  required: ['city'],
  additionalProperties: false,
};

export async function run(cases) {
  const done = [];
  for (const [name, check] of Object.entries(cases)) {
    await check();
    done.push(name);
  }
  console.log(JSON.stringify(done));
}

export async function model() {
  const answer = await fetch(`${url}/v1/models`);
  return (await answer.json()).data[0].id;
}

export { assert };
