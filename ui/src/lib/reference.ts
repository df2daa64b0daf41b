/** What the page about the API shows, read from the API's own OpenAPI document. */

export interface Schema {
  $ref?: string
  type?: string | string[]
  enum?: unknown[]
  const?: unknown
  items?: Schema
  properties?: Record<string, Schema>
  required?: string[]
  additionalProperties?: boolean | Schema
  oneOf?: Schema[]
  anyOf?: Schema[]
  description?: string
  format?: string
}

interface Content {
  content?: Record<string, { schema?: Schema }>
}

interface Described {
  operationId?: string
  summary?: string
  description?: string
  tags?: string[]
  parameters?: { name: string; in: string; required?: boolean; description?: string; schema?: Schema }[]
  requestBody?: Content
  responses?: Record<string, Content & { description?: string }>
}

export interface OpenApi {
  info: { version: string; description?: string }
  paths: Record<string, Record<string, Described>>
  components?: { schemas?: Record<string, Schema> }
}

export interface Parameter {
  name: string
  place: string
  required: boolean
  kind: string
  text: string
}

export interface Operation {
  id: string
  method: string
  path: string
  tag: string
  text: string
  parameters: Parameter[]
  /** Shapes, written like types; '' where there is none. */
  body: string
  answer: string
}

const METHODS = ['get', 'post', 'put', 'patch', 'delete']
export const VERSIONED = '/api/v1/'
/** Shapes within shapes are written out to this depth, then named. */
const DEPTH = 3

/** All operations, by tag and path. */
export function operations(document: OpenApi): Operation[] {
  const schemas = document.components?.schemas ?? {}
  const found = Object.entries(document.paths).flatMap(([path, item]) =>
    METHODS.flatMap((method) => {
      const operation = item[method]
      return operation ? [describe(method, path, operation, schemas)] : []
    }),
  )
  return found.sort((one, other) => one.tag.localeCompare(other.tag) || one.path.localeCompare(other.path))
}

function describe(method: string, path: string, operation: Described, schemas: Record<string, Schema>): Operation {
  const good = Object.entries(operation.responses ?? {}).find(([status]) => status.startsWith('2'))?.[1]
  return {
    id: operation.operationId ?? '',
    method: method.toUpperCase(),
    path,
    tag: operation.tags?.[0] ?? '',
    text: (operation.description ?? operation.summary ?? '').replaceAll('``', ''),
    parameters: (operation.parameters ?? []).map((one) => ({
      name: one.name,
      place: one.in,
      required: one.required ?? false,
      kind: shape(one.schema, schemas, 0),
      text: (one.description ?? '').replaceAll('``', ''),
    })),
    body: shapeOf(operation.requestBody, schemas),
    answer: shapeOf(good, schemas),
  }
}

function shapeOf(of: Content | undefined, schemas: Record<string, Schema>): string {
  const schema = of?.content && Object.values(of.content)[0]?.schema
  return schema && Object.keys(schema).length ? shape(schema, schemas, DEPTH) : ''
}

/** A shape as text, as types are written; named instead of written out when `depth` is used up. */
export function shape(schema: Schema | undefined, schemas: Record<string, Schema>, depth: number, indent = ''): string {
  if (!schema) return 'any'
  if (schema.$ref) {
    const name = schema.$ref.slice(schema.$ref.lastIndexOf('/') + 1)
    const known = schemas[name]
    return known && (depth > 0 || !known.properties) ? shape(known, schemas, depth - 1, indent) : name
  }
  if (schema.const !== undefined) return JSON.stringify(schema.const)
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(' | ')
  const either = schema.oneOf ?? schema.anyOf
  if (either) return either.map((one) => shape(one, schemas, depth, indent)).join(' | ')
  if (schema.properties && depth >= 0) {
    const inner = indent + '  '
    const needed = new Set(schema.required)
    const lines = Object.entries(schema.properties).map(
      ([name, one]) => `${inner}${name}${needed.has(name) ? '' : '?'}: ${shape(one, schemas, depth, inner)}`,
    )
    return `{\n${lines.join('\n')}\n${indent}}`
  }
  if (schema.items) return `${shape(schema.items, schemas, depth, indent)}[]`
  if (typeof schema.additionalProperties === 'object') return `{ [name]: ${shape(schema.additionalProperties, schemas, depth, indent)} }`
  if (Array.isArray(schema.type)) return schema.type.join(' | ')
  return schema.type ?? 'any'
}

/** A command that calls it, with the names of what must be filled in. */
export function example(operation: Operation, base: string): string {
  const method = operation.method === 'GET' ? [] : ['-X', operation.method]
  const body = operation.body ? ['-H', "'Content-Type: application/json'", '-d', "'{}'"] : []
  const address = `'${base.replace(/\/$/, '')}${operation.path}'`
  return ['curl', ...method, '-H', '"Authorization: Bearer $TOKEN"', ...body, address].join(' ')
}

/** Those that match what was typed: part of a path, of a name or of the text. */
export function matching(all: Operation[], wanted: string): Operation[] {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean)
  return all.filter((one) => {
    const text = `${one.method} ${one.path} ${one.id} ${one.text}`.toLowerCase()
    return words.every((word) => text.includes(word))
  })
}
