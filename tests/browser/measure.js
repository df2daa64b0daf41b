// What is outside its box, and which texts lie over each other: one line for each. Runs in the page.
() => {
  const found = []
  const slack = 2
  const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: true })
  const name = (element) => {
    const label = element.closest('[data-job], [data-queue], [data-task], [data-process], section, nav, header') ?? element
    return `<${element.tagName.toLowerCase()} class="${element.getAttribute('class') ?? ''}"> in <${label.tagName.toLowerCase()}>`
  }
  const width = document.documentElement.clientWidth
  if (document.documentElement.scrollWidth > width) found.push(`the page is ${document.documentElement.scrollWidth} wide, the window ${width}`)

  // A wide window must not hide columns behind a scroll bar.
  if (width > 1000) {
    for (const box of document.querySelectorAll('.scroll-x')) {
      if (box.scrollWidth > box.clientWidth + slack) found.push(`a table is ${box.scrollWidth} wide in a box of ${box.clientWidth}: ${name(box)}`)
    }
  }

  // A box that cuts or scrolls: what is beyond its edge is not seen over anything else.
  const clips = (element) => {
    const style = getComputedStyle(element)
    return style.overflowX !== 'visible' || style.overflowY !== 'visible'
  }
  const layer = (element) => {
    for (let one = element; one; one = one.parentElement) if (['fixed', 'sticky'].includes(getComputedStyle(one).position)) return one
    return null
  }
  const texts = []
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.textContent.trim()) continue
    const parent = node.parentElement
    if (!parent || parent.closest('.sr-only, .skip, option, datalist, dialog:not([open]), title') || !shown(parent)) continue
    const range = document.createRange()
    range.selectNodeContents(node)
    for (let rect of range.getClientRects()) {
      let box = { left: rect.left, right: rect.right, top: rect.top, bottom: rect.bottom }
      for (let one = parent; one && one !== document.body; one = one.parentElement) {
        const style = getComputedStyle(one)
        const edge = one.getBoundingClientRect()
        if (clips(one)) {
          box = { left: Math.max(box.left, edge.left), right: Math.min(box.right, edge.right), top: Math.max(box.top, edge.top), bottom: Math.min(box.bottom, edge.bottom) }
        } else if (!(one instanceof SVGElement) && style.display !== 'inline' && style.display !== 'contents' && box.right > box.left) {
          if (box.left < edge.left - slack || box.right > edge.right + slack) {
            found.push(`"${node.textContent.trim().slice(0, 40)}" is outside ${name(one)}: ${Math.round(box.left)}..${Math.round(box.right)} in ${Math.round(edge.left)}..${Math.round(edge.right)}`)
            break
          }
        }
        if (style.position === 'fixed') break
      }
      if (box.right - box.left > 1 && box.bottom - box.top > 1) texts.push({ ...box, node, layer: layer(parent) })
    }
  }
  texts.sort((one, other) => one.top - other.top)
  texts.forEach((one, at) => {
    for (let next = at + 1; next < texts.length && texts[next].top < one.bottom - slack; next++) {
      const other = texts[next]
      if (other.node === one.node || other.layer !== one.layer) continue
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left)
      const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top)
      // Lines of one text block may touch; texts side by side may not share a column.
      if (across > slack && down > 5) found.push(`"${one.node.textContent.trim().slice(0, 40)}" lies over "${other.node.textContent.trim().slice(0, 40)}"`)
    }
  })
  return [...new Set(found)].slice(0, 12)
}
