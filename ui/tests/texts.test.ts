import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { test } from 'node:test'
import { parse } from 'svelte/compiler'

const SOURCES = `${import.meta.dirname}/../src`
/** Attributes that people read or listen to. */
const SPOKEN = ['aria-label', 'title', 'placeholder', 'alt', 'label', 'text']
/** In code: what begins with a capital letter, or has several words. Keys of the keyboard are no words. */
const SENTENCE = /^(?!(Enter|Escape|Arrow\w+)$)([A-Z][a-z]|.*[a-z]+ [a-z]+)/
/** Names of programs and signs that stay as they are in every language. */
const NAMES = /^(· Windlass|Windlass|p50|p95|p99|11px .*|\W*)$/

interface Node {
  type: string
  name?: string
  data?: string
  value?: unknown
  fragment?: unknown
}

/** Every text of a component's markup that people see. */
function literals(node: unknown, found: string[] = []): string[] {
  if (Array.isArray(node)) node.forEach((one) => literals(one, found))
  else if (node !== null && typeof node === 'object') {
    const one = node as Node
    if (one.type === 'Text' && /[a-z]{2}/i.test(one.data ?? '')) found.push((one.data ?? '').trim())
    if (one.type === 'RegularElement' && ['pre', 'style', 'script', 'kbd', 'code'].includes(one.name ?? '')) return found
    if (['StyleSheet', 'StyleDirective', 'ImportDeclaration', 'TSLiteralType'].includes(one.type)) return found
    if (one.type === 'Literal' && typeof one.value === 'string' && SENTENCE.test(one.value)) found.push(one.value)
    if (one.type === 'Attribute' && Array.isArray(one.value) && !SPOKEN.includes(one.name ?? '')) return found
    for (const [key, value] of Object.entries(one)) if (!['type', 'metadata', 'loc'].includes(key)) literals(value, found)
  }
  return found
}

test('the words of the pages stand in the catalogue', () => {
  const missing: string[] = []
  for (const folder of ['', '/ui', '/views']) {
    for (const name of readdirSync(SOURCES + folder).filter((one) => one.endsWith('.svelte'))) {
      const { fragment, instance } = parse(readFileSync(`${SOURCES}${folder}/${name}`, 'utf8'), { modern: true })
      for (const text of literals([fragment, instance])) if (!NAMES.test(text)) missing.push(`${name}: ${text}`)
    }
  }
  assert.deepEqual(missing, [])
})
