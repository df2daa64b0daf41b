import assert from 'node:assert/strict'
import { test } from 'node:test'
import { example, matching, operations, shape, type OpenApi } from '../src/lib/reference.ts'

const document: OpenApi = {
  info: { version: '1' },
  paths: {
    '/api/v1/jobs': {
      get: {
        operationId: 'search_jobs',
        description: 'All jobs.',
        tags: ['jobs'],
        parameters: [{ name: 'limit', in: 'query', schema: { type: 'integer' }, description: 'How many.' }],
        responses: { 200: { content: { 'application/json': { schema: { $ref: '#/components/schemas/Jobs' } } } }, 404: {} },
      },
    },
    '/api/v1/jobs/{id}': {
      post: {
        operationId: 'change_job',
        tags: ['jobs'],
        requestBody: { content: { 'application/json': { schema: { $ref: '#/components/schemas/Job' } } } },
        responses: { 204: {} },
      },
    },
    '/api/audit': { get: { operationId: 'get_audit', tags: ['audit'] } },
  },
  components: {
    schemas: {
      Jobs: { type: 'object', properties: { items: { type: 'array', items: { $ref: '#/components/schemas/Job' } } }, required: ['items'] },
      Job: { type: 'object', properties: { id: { type: 'string' }, parent: { $ref: '#/components/schemas/Job' } }, required: ['id'] },
      State: { enum: ['waiting', 'active'] },
    },
  },
}

test('operations are listed by tag and path, with what they take and answer', () => {
  const found = operations(document)
  assert.deepEqual(
    found.map((one) => one.id),
    ['get_audit', 'search_jobs', 'change_job'],
  )
  const [, search, change] = found
  assert.deepEqual(search?.parameters, [{ name: 'limit', place: 'query', required: false, kind: 'integer', text: 'How many.' }])
  assert.match(search?.answer ?? '', /^\{\n {2}items: \{\n {4}id: string\n {4}parent\?: \{/)
  assert.equal(change?.answer, '', 'an answer without content has no shape')
  assert.match(change?.body ?? '', /id: string/)
})

test('a shape that holds itself ends', () => {
  assert.equal(shape({ $ref: '#/components/schemas/Job' }, document.components?.schemas ?? {}, 0), 'Job')
  assert.match(shape({ $ref: '#/components/schemas/Job' }, document.components?.schemas ?? {}, 1), /parent\?: Job/)
  assert.equal(shape({ $ref: '#/components/schemas/State' }, document.components?.schemas ?? {}, 0), '"waiting" | "active"')
  assert.equal(shape({ anyOf: [{ type: 'string' }, { type: 'null' }] }, {}, 1), 'string | null')
  assert.equal(shape({ additionalProperties: { type: 'integer' } }, {}, 1), '{ [name]: integer }')
})

test('an example calls the operation under its mount', () => {
  const [, search, change] = operations(document)
  assert.ok(search && change)
  assert.equal(example(search, 'https://x.example/jobs/'), `curl -H "Authorization: Bearer $TOKEN" 'https://x.example/jobs/api/v1/jobs'`)
  assert.match(example(change, 'https://x.example'), /^curl -X POST .* -d '\{\}' 'https:\/\/x.example\/api\/v1\/jobs\/\{id\}'$/)
})

test('operations are found by path, name and text', () => {
  const found = operations(document)
  assert.deepEqual(
    matching(found, 'POST job').map((one) => one.id),
    ['change_job'],
  )
  assert.equal(matching(found, 'all jobs').length, 1)
  assert.equal(matching(found, '').length, 3)
})
