/** Who looks at this page, and what they may do. */

import { api } from './api/client'
import { ApiError, onUnauthorized } from './api/http'
import type { Session } from './api/types'
import { clock } from './clock.svelte'
import { live } from './live.svelte'

class Who {
  session = $state.raw<Session | null>(null)
  error = $state.raw<ApiError | null>(null)
  /** Nothing can be shown before a user signs in. */
  locked = $state(false)

  constructor() {
    onUnauthorized.call = () => this.lock()
  }

  lock(): void {
    this.locked = true
    live.stop()
  }

  async load(): Promise<void> {
    try {
      this.session = await api.session()
      this.error = null
      clock.learn(this.session.now_ms)
      this.locked = !this.session.authenticated
      if (!this.locked) live.start()
    } catch (error) {
      this.error = ApiError.from(error)
      setTimeout(() => void this.load(), 3000)
    }
  }

  /** Whether anything may be changed. */
  get operator(): boolean {
    return this.session?.role === 'operator' && !this.session.read_only
  }

  has(capability: string): boolean {
    return this.session?.capabilities.includes(capability) ?? false
  }
}

export const who = new Who()
