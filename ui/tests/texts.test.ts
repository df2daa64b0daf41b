import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { test } from 'node:test'
import { parse } from 'svelte/compiler'

const SOURCES = `${import.meta.dirname}/../src`
/** The catalogue, numbers and times with their units, and the generated shapes of the API. */
const APART = ['lib/texts.ts', 'lib/job_texts.ts', 'lib/page_texts.ts', 'lib/format.ts', 'lib/api/schema.d.ts']
/** Attributes that people read or listen to. */
const SPOKEN = ['aria-label', 'title', 'placeholder', 'alt', 'label', 'text', 'none']
/** In code: what begins with a capital letter, has several words, or is joined to others. Keys of the keyboard are no words. */
const SENTENCE = /^(?!(Enter|Escape|Arrow\w+)$)([A-Z][a-z]|.*[a-z]+ [a-z]+|\d+ [a-z]{3}|\s[a-z]{2,}\s?$|[a-z]{2,}\s$)/
/** In code, between values: what begins with a capital letter, or has a word beside a space. */
const AROUND_VALUES = /^[A-Z][a-z]|(^|\s)[A-Za-z]{2,}[.,:;]?\s|\s[A-Za-z]{2,}[.,:;?!]?$/
/** Names of programs and of headers, examples of code and signs that stay as they are in every language. */
const NAMES =
  /^(· Windlass|Windlass|p50|p95|p99|11px .*|Accept|Content-Type|Traceback \(most recent call last\):|from windlass import [^]*|\W*)$/

interface Node {
  type: string
  name?: string
  data?: string
  value?: unknown
  quasis?: { value: { cooked: string } }[]
  callee?: Node
  arguments?: Node[]
}

/** Every text of a component or a module that people see. */
function literals(node: unknown, found: string[] = []): string[] {
  if (Array.isArray(node)) node.forEach((one) => literals(one, found))
  else if (node !== null && typeof node === 'object') {
    const one = node as Node
    if (one.type === 'Text' && /[a-z]{2}/i.test(one.data ?? '')) found.push((one.data ?? '').trim())
    if (one.type === 'RegularElement' && ['pre', 'style', 'script', 'kbd', 'code'].includes(one.name ?? '')) return found
    if (['StyleSheet', 'StyleDirective', 'ImportDeclaration', 'TSLiteralType'].includes(one.type)) return found
    if (one.type === 'Literal' && typeof one.value === 'string' && SENTENCE.test(one.value)) found.push(one.value)
    if (one.type === 'TemplateLiteral' && one.quasis?.some((part) => AROUND_VALUES.test(part.value.cooked)))
      found.push(one.quasis.map((part) => part.value.cooked).join('…'))
    if (one.type === 'CallExpression' && one.callee?.name === 'plural' && one.arguments?.[1]?.type === 'Literal')
      found.push(`plural of ${String(one.arguments[1].value)}`)
    if (one.type === 'Attribute' && Array.isArray(one.value) && !SPOKEN.includes(one.name ?? '')) return found
    for (const [key, value] of Object.entries(one)) if (!['type', 'metadata', 'loc'].includes(key)) literals(value, found)
  }
  return found
}

/** The texts of a file: of a component's markup and scripts, or of a module. */
function textsOf(name: string, source: string): string[] {
  const component = name.endsWith('.svelte') ? source : `<script lang="ts">${source}</script>`
  const { fragment, instance, module } = parse(component, { modern: true })
  return literals([fragment, instance, module]).filter((text) => !NAMES.test(text))
}

test('the words of the pages stand in the catalogue', () => {
  const missing: string[] = []
  const names = readdirSync(SOURCES, { recursive: true, encoding: 'utf8' }).map((name) => name.replaceAll('\\', '/'))
  for (const name of names.filter((one) => /\.(svelte|ts)$/.test(one) && !APART.includes(one)))
    for (const text of textsOf(name, readFileSync(`${SOURCES}/${name}`, 'utf8'))) missing.push(`${name}: ${text}`)
  assert.deepEqual(missing, [])
})

test('a text outside the catalogue is found wherever it stands', () => {
  const found = (source: string): number => textsOf('One.svelte', source).length
  assert.equal(found('<p>It runs</p>'), 1)
  assert.equal(found('<p title="It runs"></p>'), 1)
  assert.equal(found('<p>{`${name} is paused.`}</p>'), 1)
  assert.equal(found('<script module lang="ts">const late = "it is late"</script>'), 1)
  assert.equal(found('<script lang="ts">const many = plural(3, "job")</script>'), 1)
  assert.equal(found('<p class="wide open">{said.runs} {`queue:${name}`}</p>'), 0)
  assert.equal(textsOf('one.ts', 'export const ask = `Stop ${name}?`').length, 1)
})
