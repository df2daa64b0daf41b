/** The address of a job's trace in another tool, by the template that the server was given. */

const PARENT = /^[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}$/

interface Traced {
  queue: string
  id: string
  task: string
  trace: Record<string, string>
}

/** Null when there is no template, or when it names something that this job does not have. */
export function traceLink(template: string, job: Traced): string | null {
  if (!template) return null
  const [, trace_id, span_id] = PARENT.exec(job.trace.traceparent ?? '') ?? []
  const known: Record<string, string | undefined> = { ...job.trace, trace_id, span_id, queue: job.queue, id: job.id, task: job.task }
  let whole = true
  const link = template.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = known[name]
    if (!value) whole = false
    return encodeURIComponent(value ?? '')
  })
  return whole && /^https?:\/\//.test(link) ? link : null
}
