/** What people do to jobs: one place for the words, the questions before and the notes after. */

import { api } from './api/client'
import { ApiError } from './api/http'
import type { BulkAction, Item, Ref } from './api/types'
import { dialogs } from './dialogs.svelte'
import { toasts } from './toasts.svelte'

/** Do something and say how it went; answers whether it worked. */
export async function attempt(done: string, run: () => Promise<unknown>): Promise<boolean> {
  try {
    await run()
    toasts.show('good', done)
    return true
  } catch (error) {
    const problem = ApiError.from(error)
    toasts.show('bad', problem.message, problem.hint)
    return false
  }
}

export interface JobAction {
  name: 'retry' | 'trigger' | 'cancel' | 'kill' | 'delete'
  label: string
  done: string
  icon: 'retries' | 'play' | 'kill' | 'dead' | 'trash'
  danger?: boolean
  ask?: { title: string; text: string }
}

export const ACTIONS: Record<JobAction['name'], JobAction> = {
  retry: { name: 'retry', label: 'Retry now', done: 'The job runs again.', icon: 'retries' },
  trigger: { name: 'trigger', label: 'Run now', done: 'The job is ready to run.', icon: 'play' },
  cancel: {
    name: 'cancel',
    label: 'Cancel',
    done: 'The job is cancelled.',
    icon: 'kill',
    danger: true,
    ask: { title: 'Cancel this job?', text: 'It will not run. A handler that runs now is told to stop.' },
  },
  kill: {
    name: 'kill',
    label: 'Kill',
    done: 'The job is killed.',
    icon: 'dead',
    danger: true,
    ask: { title: 'Kill this job?', text: 'It gets no further attempt. It joins the dead jobs and can still be retried by hand.' },
  },
  delete: {
    name: 'delete',
    label: 'Delete',
    done: 'The job is deleted.',
    icon: 'trash',
    danger: true,
    ask: { title: 'Delete this job?', text: 'Its record, errors and logs are gone for good.' },
  },
}

/** What a job in this state can be asked for, most wanted first. */
export function actionsFor(state: string): JobAction[] {
  switch (state) {
    case 'scheduled':
      return [ACTIONS.trigger, ACTIONS.cancel, ACTIONS.delete]
    case 'retrying':
      return [ACTIONS.retry, ACTIONS.kill, ACTIONS.delete]
    case 'failed':
    case 'cancelled':
      return [ACTIONS.retry, ACTIONS.delete]
    case 'completed':
      return [ACTIONS.delete]
    case 'active':
      return [ACTIONS.cancel]
    default:
      return [ACTIONS.cancel, ACTIONS.delete]
  }
}

/** The request behind an action. */
function send(ref: Ref, action: JobAction): Promise<unknown> {
  if (action.name === 'delete') return api.remove(ref)
  if (action.name === 'kill') return api.kill(ref)
  return api.act(ref, action.name)
}

export async function actOn(job: Pick<Item, 'queue' | 'id' | 'task'>, action: JobAction): Promise<boolean> {
  if (action.ask) {
    const yes = await dialogs.confirm({
      title: action.ask.title,
      text: `${job.task} · ${job.id}. ${action.ask.text}`,
      action: action.label,
      danger: action.danger,
    })
    if (!yes) return false
  }
  return attempt(action.done, () => send({ queue: job.queue, id: job.id }, action))
}

/** What can be done to many jobs of a state at once. */
export function bulkFor(state: string): { action: BulkAction; label: string; verb: string; danger?: boolean }[] {
  const remove = { action: 'delete' as const, label: 'Delete', verb: 'deleted', danger: true }
  switch (state) {
    case 'scheduled':
      return [{ action: 'trigger', label: 'Run now', verb: 'made ready' }, remove]
    case 'retrying':
      return [{ action: 'retry', label: 'Retry now', verb: 'retried' }, { action: 'kill', label: 'Kill', verb: 'killed', danger: true }, remove]
    case 'failed':
    case 'cancelled':
      return [{ action: 'retry', label: 'Retry', verb: 'retried' }, remove]
    case 'completed':
      return [remove]
    case 'active':
      return [{ action: 'cancel', label: 'Cancel', verb: 'cancelled', danger: true }]
    default:
      return [{ action: 'cancel', label: 'Cancel', verb: 'cancelled', danger: true }, remove]
  }
}
