/** What the forms share: values that people type. */

import { ApiError } from './api/http'

/** The value of a JSON text (nothing is null); what cannot be read is a problem of the form, with these words. */
export function valueOf(json: string, problem: string): unknown {
  try {
    return JSON.parse(json.trim() || 'null')
  } catch {
    throw new ApiError(0, problem)
  }
}
