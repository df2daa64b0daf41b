/** Every state of a job, in the order of its life. */
export const STATES = ['waiting', 'active', 'scheduled', 'retrying', 'blocked', 'parked', 'suspended', 'completed', 'failed', 'cancelled']
